import { WebSocket } from "ws";
import { session } from "./session.mjs";

globalThis.WebSocket = WebSocket;
const [servers, packed] = process.argv.slice(2);
console.log(await session(servers, packed === "packed"));

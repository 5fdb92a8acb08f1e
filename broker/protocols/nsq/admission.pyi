"""What happens between a client and its first command, and what a command needs to be allowed."""

from broker.protocols.nsq.auth import AuthError, Grant
from broker.protocols.nsq.session import NsqSession

def answered(session: NsqSession, first: bool, answer: Grant | AuthError) -> None: ...

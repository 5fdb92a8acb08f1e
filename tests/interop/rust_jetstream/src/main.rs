//! Everyday programs with async-nats: streams, pull, push and ordered consumers, buckets, objects.
//!
//!     everyday URL MIB        MIB: the size of the object

use async_nats::jetstream::{self, consumer, kv, object_store, stream};
use futures::StreamExt;
use tokio::io::AsyncReadExt;

#[tokio::main]
async fn main() -> Result<(), async_nats::Error> {
    let client = async_nats::connect(std::env::args().nth(1).unwrap()).await?;
    let js = jetstream::new(client.clone());
    let stream = js.create_stream(stream::Config { name: "RS".into(), subjects: vec!["rs.>".into()], ..Default::default() }).await?;
    for i in 0..1000 { js.publish(format!("rs.{}", i % 10), format!("{i}").into()).await?.await?; }
    let pull: consumer::PullConsumer = stream.create_consumer(consumer::pull::Config { durable_name: Some("d".into()), ..Default::default() }).await?;
    let mut messages = pull.messages().await?.take(1000);
    let mut count = 0;
    while let Some(m) = messages.next().await { let m = m?; m.double_ack().await?; count += 1; }
    println!("pulled {count}");
    let mut batch = pull.fetch().max_messages(10).messages().await?;
    assert!(batch.next().await.is_none());
    let ordered: consumer::Consumer<consumer::pull::OrderedConfig> = stream.create_consumer(consumer::pull::OrderedConfig { filter_subject: "rs.3".into(), ..Default::default() }).await?;
    let mut read = ordered.messages().await?.take(100);
    let mut last = 0;
    while let Some(m) = read.next().await { let m = m?; let s = m.info()?.stream_sequence; assert!(s > last); last = s; }
    println!("ordered to {last}");
    let push: consumer::PushConsumer = stream.create_consumer(consumer::push::Config { deliver_subject: client.new_inbox(), durable_name: Some("p".into()), ..Default::default() }).await?;
    let mut read = push.messages().await?.take(1000);
    count = 0;
    while let Some(m) = read.next().await { m?.ack().await?; count += 1; }
    println!("pushed {count}");
    let bucket = js.create_key_value(kv::Config { bucket: "b".into(), history: 5, ..Default::default() }).await?;
    let mut watch = bucket.watch_all().await?;
    for i in 0..5 { bucket.put("k", format!("{i}").into()).await?; }
    let rev = bucket.create("new", "x".into()).await?;
    assert!(bucket.create("new", "y".into()).await.is_err());
    bucket.update("new", "z".into(), rev).await?;
    assert!(bucket.update("new", "z".into(), rev).await.is_err());
    bucket.delete("k").await?;
    for _ in 0..8 { watch.next().await.unwrap()?; }
    let history = bucket.history("k").await?.count().await;
    println!("history {history}, keys {}", bucket.keys().await?.count().await);
    bucket.purge("k").await?;
    let objects = js.create_object_store(object_store::Config { bucket: "o".into(), ..Default::default() }).await?;
    let size: usize = std::env::args().nth(2).unwrap().parse::<usize>().unwrap() << 20;
    let data: Vec<u8> = (0..size).map(|i| (i * 31 >> 3) as u8).collect();
    objects.put("big", &mut data.as_slice()).await?;
    let mut object = objects.get("big").await?;
    let mut got = Vec::with_capacity(size);
    object.read_to_end(&mut got).await?;
    assert!(got == data);
    println!("object of {} MiB", got.len() >> 20);
    objects.delete("big").await?;
    println!("info {:?}", stream.get_info().await?.state.messages);
    Ok(())
}

// JetStream with the Go client, as its users use it every day; "ok" at the end if all was right.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const patience = 20 * time.Second

func check(good bool, what ...any) {
	if !good {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

func fail(err error) {
	check(err == nil, err)
}

func main() {
	url := flag.String("url", "", "server")
	flag.Parse()
	connection, err := nats.Connect(*url, nats.Timeout(patience))
	fail(err)
	js, err := jetstream.New(connection)
	fail(err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	pulled(ctx, js)
	consumed(ctx, js)
	ordered(ctx, js)
	pushed(connection)
	managed(ctx, js)
	keys(ctx, js)
	objects(ctx, js)
	connection.Close()
	fmt.Println("ok")
}

func stream(ctx context.Context, js jetstream.JetStream, name string, count int) jetstream.Stream {
	made, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}})
	fail(err)
	for i := 0; i < count; i++ {
		_, err := js.Publish(ctx, name+"."+strconv.Itoa(i%2), []byte(strconv.Itoa(i)))
		fail(err)
	}
	return made
}

// Fetch in its forms, with acks.
func pulled(ctx context.Context, js jetstream.JetStream) {
	s := stream(ctx, js, "PULLED", 20)
	c, err := s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
	fail(err)
	batch, err := c.Fetch(8)
	fail(err)
	next := 0
	for m := range batch.Messages() {
		check(string(m.Data()) == strconv.Itoa(next), "fetch", next, string(m.Data()))
		fail(m.DoubleAck(ctx))
		next++
	}
	fail(batch.Error())
	check(next == 8, "fetched", next)
	batch, err = c.FetchNoWait(100)
	fail(err)
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		fail(err)
		check(meta.NumPending == uint64(20-next-1), "pending", meta.NumPending)
		fail(m.Ack())
		next++
	}
	fail(batch.Error())
	check(next == 20, "fetched", next)
	_, err = c.Next(jetstream.FetchMaxWait(200 * time.Millisecond))
	check(errors.Is(err, nats.ErrTimeout), "next:", err)
	batch, err = c.FetchBytes(1000, jetstream.FetchMaxWait(200*time.Millisecond))
	fail(err)
	for range batch.Messages() {
		check(false, "nothing is left")
	}
}

// Consume with refills, and Messages; redeliveries.
func consumed(ctx context.Context, js jetstream.JetStream) {
	s := stream(ctx, js, "CONSUMED", 300)
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience})
	fail(err)
	done := make(chan bool)
	count := 0
	running, err := c.Consume(func(m jetstream.Msg) {
		if count == 5 {
			meta, err := m.Metadata()
			fail(err)
			if meta.NumDelivered == 1 {
				fail(m.Nak())
				return
			}
		}
		count++
		fail(m.Ack())
		if count == 300 {
			close(done)
		}
	}, jetstream.PullMaxMessages(50), jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second))
	fail(err)
	<-done
	running.Stop()
	for i := 0; i < 10; i++ {
		_, err := js.Publish(ctx, "CONSUMED.x", nil)
		fail(err)
	}
	messages, err := c.Messages(jetstream.PullMaxMessages(3))
	fail(err)
	for i := 0; i < 10; i++ {
		m, err := messages.Next()
		fail(err)
		fail(m.DoubleAck(ctx))
	}
	messages.Stop()
	info, err := c.Info(ctx)
	fail(err)
	check(info.NumPending == 0 && info.NumAckPending == 0, "left", info.NumPending, info.NumAckPending)
}

func ordered(ctx context.Context, js jetstream.JetStream) {
	s := stream(ctx, js, "ORDERED", 500)
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{"ORDERED.1"}})
	fail(err)
	messages, err := c.Messages()
	fail(err)
	for i := 0; i < 250; i++ {
		m, err := messages.Next()
		fail(err)
		check(string(m.Data()) == strconv.Itoa(2*i+1), "ordered", i, string(m.Data()))
	}
	messages.Stop()
}

// The older API: push subscriptions, with flow control.
func pushed(connection *nats.Conn) {
	js, err := connection.JetStream(nats.MaxWait(patience))
	fail(err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "PUSHED", Subjects: []string{"PUSHED.>"}})
	fail(err)
	body := bytes.Repeat([]byte("x"), 10000)
	for i := 0; i < 500; i++ {
		_, err := js.PublishAsync("PUSHED.a", body)
		fail(err)
	}
	<-js.PublishAsyncComplete()
	sub, err := js.SubscribeSync("PUSHED.>", nats.OrderedConsumer())
	fail(err)
	for i := 0; i < 500; i++ {
		m, err := sub.NextMsg(patience)
		fail(err)
		meta, err := m.Metadata()
		fail(err)
		check(meta.Sequence.Stream == uint64(i+1), "pushed", i, meta.Sequence.Stream)
	}
	fail(sub.Unsubscribe())
	durable, err := js.SubscribeSync("PUSHED.>", nats.Durable("dur"), nats.ManualAck(), nats.DeliverLast())
	fail(err)
	m, err := durable.NextMsg(patience)
	fail(err)
	fail(m.AckSync())
	fail(durable.Unsubscribe())
}

func managed(ctx context.Context, js jetstream.JetStream) {
	s := stream(ctx, js, "MANAGED", 4)
	for _, name := range []string{"one", "two"} {
		_, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: name})
		fail(err)
	}
	_, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "one", MaxAckPending: 5, AckPolicy: jetstream.AckAllPolicy})
	check(errors.Is(err, jetstream.ErrConsumerExists), "create again:", err)
	_, err = s.UpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "three"})
	check(errors.Is(err, jetstream.ErrConsumerDoesNotExist), "update:", err)
	names := []string{}
	list := s.ConsumerNames(ctx)
	for name := range list.Name() {
		names = append(names, name)
	}
	fail(list.Err())
	sort.Strings(names)
	check(len(names) == 2 && names[0] == "one" && names[1] == "two", names)
	fail(s.DeleteConsumer(ctx, "one"))
	_, err = s.Consumer(ctx, "one")
	check(errors.Is(err, jetstream.ErrConsumerNotFound), "consumer:", err)
	fail(s.Purge(ctx, jetstream.WithPurgeSubject("MANAGED.1")))
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{FilterSubjects: []string{"MANAGED.0", "MANAGED.1"}})
	fail(err)
	check(c.CachedInfo().NumPending == 2, "pending", c.CachedInfo().NumPending)
	fail(js.DeleteStream(ctx, "MANAGED"))
}

func keys(ctx context.Context, js jetstream.JetStream) {
	kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "B", History: 5})
	fail(err)
	for i := 0; i < 3; i++ {
		_, err = kv.PutString(ctx, "a", strconv.Itoa(i))
		fail(err)
	}
	entry, err := kv.Get(ctx, "a")
	fail(err)
	check(string(entry.Value()) == "2" && entry.Revision() == 3, "get", entry)
	_, err = kv.Create(ctx, "a", nil)
	check(errors.Is(err, jetstream.ErrKeyExists), "create:", err)
	_, err = kv.Update(ctx, "a", []byte("3"), 3)
	fail(err)
	_, err = kv.Update(ctx, "a", []byte("4"), 3)
	check(err != nil, "an old revision")
	history, err := kv.History(ctx, "a")
	fail(err)
	check(len(history) == 4, "history", len(history))
	watcher, err := kv.WatchAll(ctx)
	fail(err)
	entry = <-watcher.Updates()
	check(entry != nil && string(entry.Value()) == "3", "watch")
	check(<-watcher.Updates() == nil, "the end of what there is")
	fail(kv.Delete(ctx, "a"))
	entry = <-watcher.Updates()
	check(entry.Operation() == jetstream.KeyValueDelete, "delete", entry.Operation())
	fail(watcher.Stop())
	_, err = kv.Get(ctx, "a")
	check(errors.Is(err, jetstream.ErrKeyNotFound), "get:", err)
	_, err = kv.Create(ctx, "a", []byte("again"))
	fail(err)
	_, err = kv.PutString(ctx, "b", "x")
	fail(err)
	fail(kv.Purge(ctx, "b"))
	found, err := kv.Keys(ctx)
	fail(err)
	check(len(found) == 1 && found[0] == "a", "keys", found)
	status, err := kv.Status(ctx)
	fail(err)
	check(status.Bucket() == "B" && status.History() == 5, "status")
	fail(kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)))
	fail(js.DeleteKeyValue(ctx, "B"))
}

func objects(ctx context.Context, js jetstream.JetStream) {
	store, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "O"})
	fail(err)
	data := bytes.Repeat([]byte("0123456789"), 300000)
	info, err := store.PutBytes(ctx, "one", data)
	fail(err)
	got, err := store.GetBytes(ctx, "one")
	fail(err)
	check(bytes.Equal(got, data), "object")
	_, err = store.AddLink(ctx, "link", info)
	fail(err)
	got, err = store.GetBytes(ctx, "link")
	fail(err)
	check(bytes.Equal(got, data), "link")
	fail(store.Delete(ctx, "one"))
	_, err = store.GetBytes(ctx, "one")
	check(errors.Is(err, jetstream.ErrObjectNotFound), "deleted:", err)
	_, err = store.PutString(ctx, "two", "2")
	fail(err)
	list, err := store.List(ctx)
	fail(err)
	check(len(list) == 2, "objects", len(list))
	fail(store.Seal(ctx))
	_, err = store.PutString(ctx, "three", "3")
	check(err != nil, "sealed")
	fail(js.DeleteObjectStore(ctx, "O"))
}

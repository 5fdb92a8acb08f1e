// One session of stan.go with a server, as its flags say; "ok" at the end if all was right.
package main

import (
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/stan.go"
)

const (
	patience = 15 * time.Second
	cluster  = "test-cluster"
)

var url = flag.String("url", "", "server")

func check(good bool, what ...any) {
	if !good {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

func fail(err error) {
	check(err == nil, err)
}

func connect(name string, options ...stan.Option) stan.Conn {
	options = append(options, stan.NatsURL(*url))
	connection, err := stan.Connect(cluster, name, options...)
	fail(err)
	return connection
}

// The sequences of the next messages; they are acknowledged if the subscription does not.
type heard chan *stan.Msg

func (h heard) take(count int) []*stan.Msg {
	found := []*stan.Msg{}
	for len(found) < count {
		select {
		case message := <-h:
			found = append(found, message)
		case <-time.After(patience):
			check(false, "only", len(found), "of", count)
		}
	}
	return found
}

func (h heard) expect(what string, wanted ...uint64) {
	found := sequences(h.take(len(wanted)))
	check(fmt.Sprint(found) == fmt.Sprint(wanted), what, found)
}

func sequences(messages []*stan.Msg) []uint64 {
	found := []uint64{}
	for _, message := range messages {
		found = append(found, message.Sequence)
	}
	return found
}

func sorted(messages []*stan.Msg) string {
	found := sequences(messages)
	sort.Slice(found, func(i, j int) bool { return found[i] < found[j] })
	return fmt.Sprint(found)
}

func subscribe(
	c stan.Conn, queue string, to heard, options ...stan.SubscriptionOption,
) stan.Subscription {
	handler := func(message *stan.Msg) { to <- message }
	var sub stan.Subscription
	var err error
	if queue == "" {
		sub, err = c.Subscribe("c", handler, options...)
	} else {
		sub, err = c.QueueSubscribe("c", queue, handler, options...)
	}
	fail(err)
	return sub
}

func first() {
	c := connect("one")
	for n := 1; n <= 3; n++ {
		fail(c.Publish("c", []byte(fmt.Sprint(n))))
	}
	acked := make(chan error, 2)
	for n := 4; n <= 5; n++ {
		_, err := c.PublishAsync("c", []byte(fmt.Sprint(n)), func(_ string, err error) { acked <- err })
		fail(err)
	}
	fail(<-acked)
	fail(<-acked)

	hour := time.Hour
	for what, each := range map[string]struct {
		option stan.SubscriptionOption
		wanted []uint64
	}{
		"all":   {stan.DeliverAllAvailable(), []uint64{1, 2, 3, 4, 5}},
		"seq":   {stan.StartAtSequence(4), []uint64{4, 5}},
		"last":  {stan.StartWithLastReceived(), []uint64{5}},
		"delta": {stan.StartAtTimeDelta(hour), []uint64{1, 2, 3, 4, 5}},
		"time":  {stan.StartAtTime(time.Now().Add(-hour)), []uint64{1, 2, 3, 4, 5}},
	} {
		to := make(heard, 100)
		sub := subscribe(c, "", to, each.option)
		to.expect(what, each.wanted...)
		fail(sub.Unsubscribe())
	}
	fresh := make(heard, 100)
	sub := subscribe(c, "", fresh)
	fail(c.Publish("c", []byte("6")))
	fresh.expect("new", 6)
	fail(sub.Close())

	group := make(heard, 100)
	subscribe(c, "q", group, stan.DeliverAllAvailable())
	subscribe(c, "q", group, stan.DeliverAllAvailable())
	found := sorted(group.take(6))
	check(found == "[1 2 3 4 5 6]", "group", found)

	slow := make(heard, 100)
	sub = subscribe(c, "", slow, stan.DeliverAllAvailable(), stan.SetManualAckMode(),
		stan.AckWait(time.Second), stan.MaxInflight(2))
	messages := slow.take(6)
	check(fmt.Sprint(sequences(messages)) == "[1 2 1 2 1 2]", "again", sequences(messages))
	for n, message := range messages {
		count := uint32(n / 2)
		check(message.RedeliveryCount == count && message.Redelivered == (count > 0), "count", n)
	}
	fail(messages[0].Ack())
	fail(messages[1].Ack())
	seen := map[uint64]bool{}
	for !seen[3] || !seen[4] {
		seen[slow.take(1)[0].Sequence] = true
	}
	fail(sub.Unsubscribe())

	for _, queue := range []string{"", "dq"} {
		to := make(heard, 100)
		sub = subscribe(c, queue, to, stan.DeliverAllAvailable(), stan.DurableName("d"),
			stan.SetManualAckMode())
		messages = to.take(6)
		fail(messages[0].Ack())
		fail(messages[1].Ack())
		fail(sub.Close())
	}

	_, err := stan.Connect(cluster, "one", stan.NatsURL(*url))
	check(err != nil && strings.Contains(err.Error(), "clientID already registered"), err)
	fail(c.Close())
}

func second() {
	c := connect("one")
	for _, queue := range []string{"", "dq"} {
		to := make(heard, 100)
		sub := subscribe(c, queue, to, stan.DeliverAllAvailable(), stan.DurableName("d"))
		found := sorted(to.take(4))
		check(found == "[3 4 5 6]", "durable", queue, found)
		fail(sub.Unsubscribe())
		anew := make(heard, 100)
		sub = subscribe(c, queue, anew, stan.StartWithLastReceived(), stan.DurableName("d"))
		anew.expect("anew", 6)
		fail(sub.Unsubscribe())
	}
	fail(c.Close())
}

func lost() {
	over := make(chan error, 1)
	connect("loser", stan.Pings(1, 60),
		stan.SetConnectionLostHandler(func(_ stan.Conn, err error) { over <- err }))
	fmt.Println("ready")
	err := <-over
	check(strings.Contains(err.Error(), "client has been replaced"), err)
}

func main() {
	what := flag.String("what", "", "first, second or lost")
	flag.Parse()
	map[string]func(){"first": first, "second": second, "lost": lost}[*what]()
	fmt.Println("ok")
}

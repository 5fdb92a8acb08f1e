// One session of the Go client with a server, as its flags say; "ok" at the end if all was right.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	patience = 10 * time.Second
	count    = 1000
)

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
	user := flag.String("user", "", "user")
	password := flag.String("password", "", "password")
	token := flag.String("token", "", "token")
	seed := flag.String("seed", "", "file with the seed of an nkey")
	ca := flag.String("ca", "", "file with the authorities of the server's certificate")
	denied := flag.String("denied", "", "a subject that may not be published to")
	flag.Parse()

	violations := make(chan error, 16)
	options := []nats.Option{
		nats.Timeout(patience),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }),
	}
	if *user != "" {
		options = append(options, nats.UserInfo(*user, *password))
	}
	if *token != "" {
		options = append(options, nats.Token(*token))
	}
	if *seed != "" {
		option, err := nats.NkeyOptionFromSeed(*seed)
		fail(err)
		options = append(options, option)
	}
	if *ca != "" {
		options = append(options, nats.RootCAs(*ca))
	}
	connection, err := nats.Connect(*url, options...)
	fail(err)
	stream(connection)
	requests(connection)
	if *denied != "" {
		fail(connection.Publish(*denied, nil))
		select {
		case err := <-violations:
			text := strings.ToLower(err.Error())
			check(strings.Contains(text, nats.PERMISSIONS_ERR), "not a violation:", err)
		case <-time.After(patience):
			check(false, "nobody minds")
		}
	}
	drained := make(chan bool)
	connection.SetClosedHandler(func(*nats.Conn) { close(drained) })
	fail(connection.Drain())
	<-drained
	fmt.Println("ok")
}

// stream sends numbered messages with headers to a subscriber and to the members of a queue.
func stream(connection *nats.Conn) {
	all, err := connection.SubscribeSync("go.*.numbers")
	fail(err)
	shared := make(chan *nats.Msg, 2*count)
	for range [3]int{} {
		_, err := connection.ChanQueueSubscribe("go.>", "workers", shared)
		fail(err)
	}
	fail(connection.Flush())
	for i := 0; i < count; i++ {
		message := nats.NewMsg("go.x.numbers")
		message.Header.Set("Number", fmt.Sprint(i))
		message.Data = []byte(fmt.Sprint(i))
		fail(connection.PublishMsg(message))
	}
	for i := 0; i < count; i++ {
		message, err := all.NextMsg(patience)
		fail(err)
		check(string(message.Data) == fmt.Sprint(i), "order:", string(message.Data), i)
		check(message.Header.Get("Number") == fmt.Sprint(i), "header of", i)
	}
	for i := 0; i < count; i++ {
		select {
		case <-shared:
		case <-time.After(patience):
			check(false, "the queue got", i)
		}
	}
	check(len(shared) == 0, "the queue got too much")
	fail(all.Unsubscribe())
}

// requests asks somebody, and nobody.
func requests(connection *nats.Conn) {
	service, err := connection.Subscribe("ask.go", func(message *nats.Msg) {
		fail(message.Respond(append([]byte("re: "), message.Data...)))
	})
	fail(err)
	answer, err := connection.Request("ask.go", []byte("x"), patience)
	fail(err)
	check(string(answer.Data) == "re: x", "answer:", string(answer.Data))
	fail(service.Unsubscribe())
	_, err = connection.Request("ask.go", nil, patience)
	check(errors.Is(err, nats.ErrNoResponders), "not told that nobody is there:", err)
}

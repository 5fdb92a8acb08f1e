// Publishes messages and reads them back, with a secret: prints what it read, a line each.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/nsqio/go-nsq"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	address, topic, secret := os.Args[1], os.Args[2], os.Args[3]
	config := nsq.NewConfig()
	fail(config.Set("auth_secret", secret))

	producer, err := nsq.NewProducer(address, config)
	fail(err)
	producer.SetLoggerLevel(nsq.LogLevelMax)
	fail(producer.Publish(topic, []byte("one")))
	fail(producer.MultiPublish(topic, [][]byte{[]byte("two"), []byte("three")}))

	consumer, err := nsq.NewConsumer(topic, "c", config)
	fail(err)
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	bodies := make(chan string, 3)
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		bodies <- string(m.Body)
		return nil
	}))
	fail(consumer.ConnectToNSQD(address))
	for i := 0; i < 3; i++ {
		select {
		case body := <-bodies:
			fmt.Println(body)
		case <-time.After(20 * time.Second):
			fail(fmt.Errorf("no message in time"))
		}
	}
	consumer.Stop()
	<-consumer.StopChan
	producer.Stop()
}

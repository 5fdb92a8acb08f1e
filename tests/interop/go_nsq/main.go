// Publishes messages and reads them back as its flags say; prints what it finished, a line each.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
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
	nsqd := flag.String("nsqd", "", "where to publish")
	lookupd := flag.String("lookupd", "", "HTTP address of a nsqlookupd to find the topic by")
	topic := flag.String("topic", "", "topic")
	count := flag.Int("count", 3, "messages")
	size := flag.Int("size", 0, "bytes that each body is filled up to")
	again := flag.Bool("requeue", false, "let each message fail the first time")
	options := flag.String("options", "", "key=value,... of the client's configuration")
	flag.Parse()

	config := nsq.NewConfig()
	config.MaxInFlight = 50
	config.DefaultRequeueDelay = 0
	config.MaxBackoffDuration = 0
	config.LookupdPollInterval = 100 * time.Millisecond
	for _, option := range strings.Split(*options, ",") {
		if key, value, found := strings.Cut(option, "="); found {
			fail(config.Set(key, value))
		}
	}

	producer, err := nsq.NewProducer(*nsqd, config)
	fail(err)
	producer.SetLoggerLevel(nsq.LogLevelMax)
	bodies := make([][]byte, *count)
	for i := range bodies {
		bodies[i] = []byte(fmt.Sprintf("%d", i))
		if fill := *size - len(bodies[i]); fill > 0 {
			bodies[i] = append(bodies[i], []byte(strings.Repeat(" ", fill))...)
		}
	}
	fail(producer.Publish(*topic, bodies[0]))
	fail(producer.MultiPublish(*topic, bodies[1:]))

	consumer, err := nsq.NewConsumer(*topic, "c", config)
	fail(err)
	consumer.SetLoggerLevel(nsq.LogLevelMax)
	done := make(chan string, *count)
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		if *again && m.Attempts == 1 {
			return fmt.Errorf("not yet")
		}
		done <- strings.TrimSpace(string(m.Body))
		return nil
	}))
	if *lookupd != "" {
		fail(consumer.ConnectToNSQLookupd(*lookupd))
	} else {
		fail(consumer.ConnectToNSQD(*nsqd))
	}
	for i := 0; i < *count; i++ {
		select {
		case body := <-done:
			fmt.Println(body)
		case <-time.After(20 * time.Second):
			fail(fmt.Errorf("no message in time"))
		}
	}
	consumer.Stop()
	<-consumer.StopChan
	producer.Stop()
}

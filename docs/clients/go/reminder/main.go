// A timer after a delay, one at an instant, and a cancel of the first, whose reply is awaited.
//
//	go run ./reminder localhost:9092 orders.delayed orders orders.replies
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, timers, target, replies := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	client, err := kgo.NewClient(
		// acks=all, idempotence and Java's partitioner are the defaults of franz-go.
		kgo.SeedBrokers(servers), kgo.DefaultProduceTopic(timers),
		// Replies, from a minute ago on: one that comes before the first fetch is seen, too.
		kgo.ConsumeTopics(replies), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().UnixMilli()-60_000)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()

	later := &kgo.Record{
		Key:   []byte("order-42"),
		Value: []byte("pay your order"),
		Headers: []kgo.RecordHeader{
			header("REAL_TOPIC", target),
			header("TIMER_DELAY_MS", millis((15 * time.Minute).Milliseconds())),
			header("UNIQ_KEY", "reminder-42"),
		},
	}
	atTwo := &kgo.Record{
		Key:   []byte("order-43"),
		Value: []byte("pay now"),
		Headers: []kgo.RecordHeader{
			header("REAL_TOPIC", target),
			header("TIMER_DELIVER_MS", millis(time.Now().Add(2*time.Second).UnixMilli())),
		},
	}
	// With the timer's key, so in its partition, where ids count.
	cancel := &kgo.Record{
		Key:     []byte("order-42"),
		Headers: []kgo.RecordHeader{header("TIMER_DEL_UNIQKEY", "reminder-42")},
	}
	if err := client.ProduceSync(ctx, later, atTwo, cancel).FirstErr(); err != nil {
		log.Fatal(err)
	}
	source := fmt.Sprintf("%s-%d@%d", cancel.Topic, cancel.Partition, cancel.Offset)
	fmt.Println(replyTo(ctx, client, source))
}

// replyTo waits for the reply to the cancel at this place of the timer topic.
func replyTo(ctx context.Context, client *kgo.Client, source string) string {
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			log.Fatal(err)
		}
		for _, reply := range fetches.Records() {
			if value(reply, "TIMER_SOURCE") == source {
				return value(reply, "TIMER_ANSWER")
			}
		}
	}
}

func value(record *kgo.Record, name string) string {
	for _, header := range record.Headers {
		if header.Key == name {
			return string(header.Value)
		}
	}
	return ""
}

func header(name, value string) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: []byte(value)}
}

func millis(ms int64) string {
	return strconv.FormatInt(ms, 10)
}

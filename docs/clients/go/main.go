// A timer after a delay, one at an instant, and a cancel of the first: the headers are all of it.
//
//	go run . localhost:9092 orders.delayed orders
package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, timers, target := os.Args[1], os.Args[2], os.Args[3]
	// acks=all, idempotence and Java's partitioner are the defaults of franz-go.
	client, err := kgo.NewClient(kgo.SeedBrokers(servers), kgo.DefaultProduceTopic(timers))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

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
	if err := client.ProduceSync(context.Background(), later, atTwo, cancel).FirstErr(); err != nil {
		log.Fatal(err)
	}
}

func header(name, value string) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: []byte(value)}
}

func millis(ms int64) string {
	return strconv.FormatInt(ms, 10)
}

// A consumer whose failed messages come again later: after 1 s, 2 s, 4 s, four attempts in all.
//
//	go run ./retry localhost:9092 orders.delayed orders
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

const attempts = 4

func main() {
	servers, timers, topic := os.Args[1], os.Args[2], os.Args[3]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			log.Fatal(err)
		}
		for _, record := range fetches.Records() {
			attempt := attemptOf(record)
			if err := handle(record); err == nil {
				fmt.Printf("done: %s, attempt %d\n", record.Value, attempt)
			} else if attempt == attempts {
				fmt.Printf("given up: %s, attempt %d\n", record.Value, attempt)
			} else if err := client.ProduceSync(ctx, later(record, timers, attempt)).FirstErr(); err != nil {
				log.Fatal(err) // not committed: the message comes again
			}
			// After the retry is acknowledged. A kill between both makes two retries, and loses none.
			if err := client.CommitRecords(ctx, record); err != nil {
				log.Fatal(err)
			}
		}
	}
}

func handle(record *kgo.Record) error {
	if string(record.Value) == "oops" {
		return errors.New("no order")
	}
	return nil
}

// later is the message as a timer, with its key and its own headers.
func later(record *kgo.Record, timers string, attempt int) *kgo.Record {
	headers := []kgo.RecordHeader{
		{Key: "REAL_TOPIC", Value: []byte(record.Topic)},
		{Key: "TIMER_DELAY_MS", Value: []byte(strconv.Itoa(1000 << (attempt - 1)))},
		{Key: "RETRY_ATTEMPT", Value: []byte(strconv.Itoa(attempt + 1))},
	}
	for _, header := range record.Headers {
		// The id is the delivered timer's. Other headers of a delivery are dropped by the service.
		if header.Key != "UNIQ_KEY" && header.Key != "RETRY_ATTEMPT" {
			headers = append(headers, header)
		}
	}
	return &kgo.Record{Topic: timers, Key: record.Key, Value: record.Value, Headers: headers}
}

func attemptOf(record *kgo.Record) int {
	for _, header := range record.Headers {
		if header.Key == "RETRY_ATTEMPT" {
			if attempt, err := strconv.Atoi(string(header.Value)); err == nil {
				return attempt
			}
		}
	}
	return 1
}

// A consumer whose failed messages come again later: after 1 s, 2 s, 4 s, four attempts in all.
// After the fourth one the message is in a topic for dead letters.
//
//	go run ./retry localhost:9092 orders.delayed orders orders.failed
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const attempts = 4

var number = regexp.MustCompile(`^[1-9][0-9]{0,5}$`)

func main() {
	servers, timers, topic, failed := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
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
			if failure := handle(record); failure == nil {
				fmt.Printf("done: %s, attempt %d\n", record.Value, attempt)
			} else if attempt < attempts {
				mustSend(ctx, client, later(record, timers, attempt), pointer(record, failed, failure))
			} else {
				mustSend(ctx, client, deadLetter(record, failed, failure), pointer(record, failed, failure))
				fmt.Printf("given up: %s, attempt %d\n", record.Value, attempt)
			}
			// After the retry, or dead letter, is acknowledged. A kill between both makes two, and loses
			// none.
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

// mustSend returns once the record is acknowledged; of one that is too large, the pointer to it.
func mustSend(ctx context.Context, client *kgo.Client, record, pointer *kgo.Record) {
	err := client.ProduceSync(ctx, record).FirstErr()
	if errors.Is(err, kerr.MessageTooLarge) { // it would be so each time that it comes again
		err = client.ProduceSync(ctx, pointer).FirstErr()
	}
	if err != nil {
		log.Fatal(err) // not committed: the message comes again
	}
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

// deadLetter is the message as it is, and why it failed.
func deadLetter(record *kgo.Record, failed string, failure error) *kgo.Record {
	reason := kgo.RecordHeader{Key: "RETRY_ERROR_TEXT", Value: []byte(failure.Error())}
	headers := append(record.Headers, reason)
	return &kgo.Record{Topic: failed, Key: record.Key, Value: record.Value, Headers: headers}
}

// pointer is a dead letter without content: where the message is, and why it failed.
func pointer(record *kgo.Record, failed string, failure error) *kgo.Record {
	place := fmt.Sprintf("%s-%d@%d", record.Topic, record.Partition, record.Offset)
	return &kgo.Record{Topic: failed, Headers: []kgo.RecordHeader{
		{Key: "RETRY_FIRST", Value: []byte(place)},
		{Key: "RETRY_REASON", Value: []byte("too_large")},
		{Key: "RETRY_ERROR_TEXT", Value: []byte(fmt.Sprintf("%.200s", failure))},
	}}
}

// attemptOf is 1 for what is no number: any producer may write the header.
func attemptOf(record *kgo.Record) int {
	for _, header := range record.Headers {
		if header.Key == "RETRY_ATTEMPT" && number.Match(header.Value) {
			attempt, _ := strconv.Atoi(string(header.Value))
			return attempt
		}
	}
	return 1
}

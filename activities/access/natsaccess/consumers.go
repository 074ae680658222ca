package natsaccess

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Subjects of JetStream's requests: https://docs.nats.io/reference/reference-protocols/nats_api_reference
const (
	api            = "$JS.API."
	createConsumer = api + "CONSUMER.CREATE."
	consumerInfo   = api + "CONSUMER.INFO."
	deleteConsumer = api + "CONSUMER.DELETE."
	nextMessage    = api + "CONSUMER.MSG.NEXT."
	directGet      = api + "DIRECT.GET."
)

// Bounds of a build's consumers.
const (
	// maxConsumers is how many a build may have at a time in one stream. An end that is told late needs one for some
	// seconds; ends beyond these wait.
	maxConsumers = 16
	// consumerIdle is when the server forgets one that nobody reads. Its reader asks again at least every 30 seconds.
	consumerIdle = time.Minute
	// maxWaiting, maxBatch and maxExpires bound the requests for its messages that wait.
	maxWaiting = 16
	maxBatch   = 1000
	maxExpires = time.Minute
	// lookEvery is how often the server is asked, at most, which of a build's consumers it has forgotten.
	lookEvery = time.Second
)

// consumer names one in a stream.
type consumer struct{ stream, name string }

// consumerOf returns the consumer that a question or a deletion is about.
func consumerOf(subject string) (c consumer, is bool) {
	for _, call := range []string{consumerInfo, deleteConsumer} {
		if place, found := strings.CutPrefix(subject, call); found {
			c.stream, c.name, _ = strings.Cut(place, ".")
			return c, true
		}
	}
	return consumer{}, false
}

// consumers are all that the build of an account may have. The names are fixed, because a right of NATS to a subject is
// to one name or to all.
func (a *account) consumers() []consumer {
	all := make([]consumer, 0, 2*maxConsumers)
	for _, stream := range []string{wire.LoopStream, wire.DoneStream} {
		for i := range maxConsumers {
			all = append(all, consumer{stream, "build-" + strconv.Itoa(a.number) + "-" + strconv.Itoa(i)})
		}
	}
	return all
}

// has says whether the build of the account may have the consumer.
func (a *account) has(c consumer) bool {
	number, is := strings.CutPrefix(c.name, "build-"+strconv.Itoa(a.number)+"-")
	i, err := strconv.Atoi(number)
	return is && err == nil && strconv.Itoa(i) == number && i >= 0 && i < maxConsumers
}

// create returns the request for a consumer, under a name that is free, of which place is what stands in its subject:
// stream, name and filter.
func (b *build) create(place string, data []byte) (*nats.Msg, error) {
	stream, rest, _ := strings.Cut(place, ".")
	_, filter, _ := strings.Cut(rest, ".")
	c, free := b.unused(stream)
	if !free {
		return nil, &refusedError{code: 429, reason: fmt.Sprintf(
			"the build has %d consumers of %s, as many as it may have: delete one, or wait", maxConsumers, stream)}
	}
	config, err := readOnce(data)
	if err != nil {
		return nil, err
	}
	config.Name, config.FilterSubject = c.name, filter
	encoded, err := json.Marshal(map[string]any{"stream_name": stream, "config": config, "action": "create"})
	if err != nil {
		return nil, err
	}
	b.consumers[c] = true
	return &nats.Msg{Subject: createConsumer + stream + "." + c.name + "." + filter, Data: encoded}, nil
}

// unused returns a consumer of stream that is not there.
func (b *build) unused(stream string) (unused consumer, found bool) {
	for range 2 {
		for _, c := range b.account.consumers() {
			if c.stream == stream && !b.consumers[c] {
				return c, true
			}
		}
		if time.Since(b.looked) < lookEvery {
			break
		}
		b.looked = time.Now()
		b.look()
	}
	return consumer{}, false
}

// look asks the server which consumers are there: it forgets those that nobody reads.
func (b *build) look() {
	for c := range b.consumers {
		answer, err := b.connection.Request(consumerInfo+c.stream+"."+c.name, nil, time.Second)
		var told struct {
			Error *jetstream.APIError `json:"error"`
		}
		if err == nil && json.Unmarshal(answer.Data, &told) == nil && told.Error != nil && told.Error.Code == 404 {
			delete(b.consumers, c)
		}
	}
}

// readOnce returns the consumer that a request asks for, as a build may have one: it reads from where it was asked to,
// keeps nothing, and ends when nobody fetches.
func readOnce(data []byte) (jetstream.ConsumerConfig, error) {
	var asked struct {
		Config jetstream.ConsumerConfig `json:"config"`
	}
	if err := json.Unmarshal(data, &asked); err != nil {
		return jetstream.ConsumerConfig{}, fmt.Errorf("the request for a consumer cannot be read: %w", err)
	}
	c := asked.Config
	if c.DeliverSubject != "" || c.DeliverGroup != "" || c.Durable != "" {
		return jetstream.ConsumerConfig{}, errors.New(
			"a build's consumer has no name that lasts, and no subject to which it delivers: fetch its messages")
	}
	return jetstream.ConsumerConfig{
		DeliverPolicy: c.DeliverPolicy, OptStartSeq: c.OptStartSeq, OptStartTime: c.OptStartTime,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: consumerIdle,
		MaxWaiting: maxWaiting, MaxRequestBatch: maxBatch, MaxRequestExpires: maxExpires,
	}, nil
}

package natsaccess

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Subjects of JetStream's requests: https://docs.nats.io/reference/reference-protocols/nats_api_reference
const (
	api            = "$JS.API."
	createConsumer = api + "CONSUMER.CREATE."
	consumerInfo   = api + "CONSUMER.INFO."
	deleteConsumer = api + "CONSUMER.DELETE."
	nextMessage    = api + "CONSUMER.MSG.NEXT."
	directGet      = api + "DIRECT.GET."
	// accountInfo no tenant may ask. When its store is opened anew, NATS has every account that imports this from nowhere
	// ask JetStream itself whatever it asks, beside the proxy; and the answer of JetStream, that the account has none,
	// comes first.
	accountInfo = api + "INFO"
)

// Bounds of a tenant's consumers.
const (
	// maxConsumers is how many a build may have at a time in one stream. An end that is told late needs one for some
	// seconds; ends beyond these wait. hostConsumers is how many a host may have: it reads the plan with one, and one that
	// it has lost stays for consumerIdle.
	maxConsumers  = 16
	hostConsumers = 8
	// consumerIdle is when the server forgets one that nobody reads. Its reader asks again at least every 30 seconds.
	consumerIdle = time.Minute
	// maxWaiting, maxBatch and maxExpires bound the requests for its messages that wait.
	maxWaiting = 16
	maxBatch   = 1000
	maxExpires = time.Minute
	// lookEvery is how often the server is asked, at most, which of a tenant's consumers it has forgotten, and lookWait
	// for how long one answer is waited for.
	lookEvery = time.Second
	lookWait  = time.Second
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

// consumers are all that the tenant of an account may have. The names are fixed, because a right of NATS to a subject
// is to one name or to all; nil where tenants of the kind may fetch from all (see kind.serial).
func (a *account) consumers() []consumer {
	if a.kind.serial {
		return nil
	}
	all := make([]consumer, 0, len(a.kind.streams)*a.kind.maxConsumers)
	for _, stream := range a.kind.streams {
		for i := range a.kind.maxConsumers {
			all = append(all, consumer{stream, a.consumerPrefix() + strconv.Itoa(i)})
		}
	}
	return all
}

func (a *account) consumerPrefix() string { return a.kind.name + "-" + a.name + "-" }

// has says whether the tenant of the account may have the consumer.
func (a *account) has(c consumer) bool {
	number, is := strings.CutPrefix(c.name, a.consumerPrefix())
	i, err := strconv.Atoi(number)
	return is && err == nil && strconv.Itoa(i) == number && i >= 0 && i < a.kind.maxConsumers
}

// create returns the request for a consumer, under a name that is free, of which place is what stands in its subject:
// stream, name and filter.
func (t *tenant) create(place string, data []byte) (*nats.Msg, error) {
	stream, rest, _ := strings.Cut(place, ".")
	asked, filter, _ := strings.Cut(rest, ".")
	c, free := t.unused(stream, asked)
	if !free {
		return nil, &refusedError{code: 429, reason: fmt.Sprintf(
			"the %s has %d consumers of %s, as many as it may have: delete one, or wait", t.kind.name, t.kind.maxConsumers,
			stream)}
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
	if t.kind.serial {
		if t.counted[c], err = t.connection.Subscribe(nextMessage+c.stream+"."+c.name, t.count); err != nil {
			return nil, err
		}
	}
	t.creations++
	t.consumers[c] = t.creations
	return &nats.Msg{Subject: createConsumer + stream + "." + c.name + "." + filter, Data: encoded}, nil
}

// unused returns a consumer of stream that is not there, for one that was asked for by a name. Where none is known to
// be, the server is asked, and who asks again later learns what it has said: meanwhile the tenant's other requests go
// on.
func (t *tenant) unused(stream, asked string) (unused consumer, found bool) {
	select {
	case gone := <-t.gone:
		t.looking = false
		for c, creation := range gone {
			if t.consumers[c] == creation { // and was not made again since
				t.gaveUp(c)
			}
		}
	default:
	}
	if t.kind.serial && len(t.consumers) < t.kind.maxConsumers {
		return consumer{stream, t.account.consumerPrefix() + rand.Text() + "_" + serialOf(asked)}, true
	}
	for _, c := range t.account.consumers() {
		if _, there := t.consumers[c]; c.stream == stream && !there {
			return c, true
		}
	}
	if !t.looking && time.Since(t.looked) >= lookEvery {
		t.looked = time.Now()
		known := maps.Clone(t.consumers)
		t.looking = t.begin(func() { t.gone <- t.look(known) })
	}
	return consumer{}, false
}

// gaveUp forgets a consumer.
func (t *tenant) gaveUp(c consumer) {
	delete(t.consumers, c)
	if counted := t.counted[c]; counted != nil {
		delete(t.counted, c)
		_ = counted.Unsubscribe() // unless the connection is closed
	}
}

// serialOf is the number at the end of a consumer's name by which NATS's ordered consumers tell their messages from
// those of the consumer before (jetstream.OrderedConsumer in nats.go).
func serialOf(name string) string {
	serial := name[strings.LastIndexByte(name, '_')+1:]
	if number, err := strconv.ParseUint(serial, 10, 31); err != nil || strconv.FormatUint(number, 10) != serial {
		return "0"
	}
	return serial
}

// begin starts what close waits for; began is false once the tenant is closed.
func (t *tenant) begin(look func()) (began bool) {
	t.ending.Lock()
	defer t.ending.Unlock()
	if !t.ended {
		t.running.Go(look)
	}
	return !t.ended
}

// look asks the server which of these consumers are gone: it forgets those that nobody reads. It stops where the server
// does not answer.
func (t *tenant) look(known map[consumer]int) (gone map[consumer]int) {
	gone = map[consumer]int{}
	for c, creation := range known {
		answer, err := t.connection.Request(consumerInfo+c.stream+"."+c.name, nil, lookWait)
		if err != nil {
			break
		}
		var told struct {
			Error *jetstream.APIError `json:"error"`
		}
		if json.Unmarshal(answer.Data, &told) == nil && told.Error != nil && told.Error.Code == http.StatusNotFound {
			gone[c] = creation
		}
	}
	return gone
}

// readOnce returns the consumer that a request asks for, as a tenant may have one: it reads from where it was asked to,
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
			"a tenant's consumer has no name that lasts, and no subject to which it delivers: fetch its messages")
	}
	return jetstream.ConsumerConfig{
		DeliverPolicy: c.DeliverPolicy, OptStartSeq: c.OptStartSeq, OptStartTime: c.OptStartTime,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: consumerIdle,
		MaxWaiting: maxWaiting, MaxRequestBatch: maxBatch, MaxRequestExpires: maxExpires,
	}, nil
}

package alerts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/predictor/alerting"
)

const (
	// maxQueue bounds what waits for one destination, maxRecent what Recent knows.
	maxQueue  = 256
	maxRecent = 1000
)

// Options configures a Sender. The zero value sends nowhere and only remembers.
type Options struct {
	// JetStream stores alerts in the stream that EnsureStream makes; nil stores none.
	JetStream jetstream.JetStream
	// Webhooks are the URLs to which alerts are posted as JSON. CheckWebhook says which are possible.
	Webhooks []string
	// Header is sent with every request, for webhooks that ask for a token.
	Header http.Header
	// Client makes the requests; nil is one of its own. A request takes at most ten seconds, and redirects are not
	// followed.
	Client *http.Client
	// Retry says how often a destination that is away is tried again.
	Retry Retry
	// Earlier are alerts that were sent before, as Stored returns them: Recent knows them, and Send does not send them
	// again.
	Earlier []alerting.Alert
	// Logger takes a line for every alert that is given up; nil discards them. It is never given a webhook's path or
	// query, which are secrets.
	Logger *slog.Logger
}

// Retry is how often sending is tried again: after First, then ever twice as long up to Most, for as long as For.
type Retry struct {
	First time.Duration // 0 means one second
	Most  time.Duration // 0 means one minute
	For   time.Duration // 0 means ten minutes
}

// Sender sends alerts to every destination in the order in which they were given. Its methods are safe for concurrent
// use.
type Sender struct {
	logger *slog.Logger
	queues []*queue
	work   sync.WaitGroup
	cancel context.CancelFunc

	mu     sync.Mutex
	recent []alerting.Alert // guarded by mu; oldest first
	known  map[string]bool  // guarded by mu; the IDs of recent
	closed bool             // guarded by mu
}

// destination is where alerts go.
type destination interface {
	// name is what may be logged of it.
	name() string
	// deliver sends one alert once. A failure that another try cannot fix is wrapped in errFinal.
	deliver(ctx context.Context, alert alerting.Alert, data []byte) error
}

// New returns a Sender that is at work. The caller closes it. A webhook that CheckWebhook refuses is an error.
func New(options Options) (*Sender, error) {
	s := &Sender{logger: options.Logger, known: map[string]bool{}}
	s.logger = cmp.Or(s.logger, slog.New(slog.DiscardHandler))
	destinations, err := destinationsOf(options)
	if err != nil {
		return nil, err
	}
	earlier := slices.SortedStableFunc(slices.Values(options.Earlier), func(a, b alerting.Alert) int {
		return a.At.Compare(b.At)
	})
	for _, alert := range earlier {
		s.remember(alert)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	retry := options.Retry.orDefaults()
	for _, to := range destinations {
		q := &queue{to: to, retry: retry, logger: s.logger, wake: make(chan struct{}, 1)}
		s.queues = append(s.queues, q)
		s.work.Go(func() { q.run(ctx) })
	}
	return s, nil
}

func destinationsOf(options Options) ([]destination, error) {
	var found []destination
	if options.JetStream != nil {
		found = append(found, stream{options.JetStream})
	}
	for _, address := range options.Webhooks {
		hook, err := newWebhook(address, options)
		if err != nil {
			return nil, err
		}
		found = append(found, hook)
	}
	return found, nil
}

// Send hands an alert to every destination and returns at once. It reports false for one that it drops, because its ID
// was sent before or because it comes after Close. When a destination has been away for so long that its queue is full,
// the oldest alert of the same run makes room, or else the oldest of all.
func (s *Sender) Send(alert alerting.Alert) (sent bool) {
	data, err := json.Marshal(alert)
	if err != nil {
		s.logger.Error("alert dropped", "alert", alert.ID, "error", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.known[alert.ID] {
		return false
	}
	s.remember(alert)
	for _, q := range s.queues {
		q.put(delivery{alert, data})
	}
	return true
}

// Learn takes in an alert that another server has sent: Recent knows it, and Send does not send it again. It reports
// false for one that is known.
func (s *Sender) Learn(alert alerting.Alert) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alert.ID == "" || s.known[alert.ID] {
		return false
	}
	s.remember(alert)
	return true
}

// remember keeps an alert for Recent. The caller holds mu, or nobody else has s yet.
func (s *Sender) remember(alert alerting.Alert) {
	if s.known[alert.ID] {
		return
	}
	if len(s.recent) >= maxRecent {
		delete(s.known, s.recent[0].ID)
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, alert)
	s.known[alert.ID] = true
}

// Recent returns the latest n alerts, newest first, whether or not they have been delivered.
func (s *Sender) Recent(n int) []alerting.Alert {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := slices.Clone(s.recent[max(0, len(s.recent)-max(0, n)):])
	slices.Reverse(found)
	return found
}

// Close sends what waits, trying again as before, until ctx ends; the error then says how many alerts are left.
// Whatever is sent after it is dropped.
func (s *Sender) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, q := range s.queues {
		q.close()
	}
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("send the alerts that are left: %w", ctx.Err())
	}
	s.cancel()
	<-done
	left := 0
	for _, q := range s.queues {
		left += q.waiting()
	}
	if err != nil && left > 0 {
		return fmt.Errorf("%w; %d were not delivered", err, left)
	}
	return nil
}

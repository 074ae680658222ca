package natsaccess

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// prefix begins the subjects, in the engine's account, on which requests of tenants come: behind it are the number of
	// the account and the subject that was asked for.
	prefix = "spillway.tenants."
	// answerPrefix begins the subjects that NATS makes up for answers to another account. No client can have its answers
	// sent there by itself.
	answerPrefix = "_R_."
	// inbox begins the subjects on which the proxy takes the answers; behind it are the name of the account and what
	// stands behind answerPrefix.
	inbox = "spillway.answers."
	// unserved begins subjects of the engine's account to which nobody subscribes.
	unserved = "spillway.unserved."

	// answerWait is for how long the server remembers where the answer to a request goes.
	answerWait = 30 * time.Second
)

// What one build may have NATS keep, and each tenant ask it: so many bytes a second in the long run, and as many at
// once as 100,000 lookups or ends of runs take. What is behind that waits or is told again. Both count subjects and
// headers.
const (
	bytesPerSecond = 1 << 20
	bytesAtOnce    = 64 << 20
	// hostBytesPerSecond and hostBytesAtOnce are what a host may have NATS keep: what a hundred attempts print at their
	// own limit (package logs), or 50,000 of them are sampled.
	hostBytesPerSecond = 128 << 20
	hostBytesAtOnce    = 512 << 20
	// fetchesPerSecond and fetchesAtOnce are how often a tenant may ask for messages, several hundred at a time, before it
	// is sent away: the server remembers each for minutes.
	fetchesPerSecond = 20
	fetchesAtOnce    = 1000
	// entriesPerSecond and entriesAtOnce are how many entries of stores that are kept for days a tenant may make: each
	// takes memory of the server whatever its size, and the results that are kept are of a number.
	entriesPerSecond = 200
	entriesAtOnce    = 20_000
	// refusedPerSecond and refusedAtOnce are how many refusals a tenant may cause before it is sent away.
	refusedPerSecond = 100
	refusedAtOnce    = 10_000
	// hastyPerSecond and hastyAtOnce are how often a tenant may be told to wait before it is sent away: more than a worker
	// is told that waits each time, with a thousand ends on their way.
	hastyPerSecond = 1000
	hastyAtOnce    = 50_000
	// untoldEvery is how often it is logged, at most, that nobody heard a refusal.
	untoldEvery = time.Minute
	// pendingMessages and pendingBytes bound what of a tenant waits for the proxy: who fills that is sent away as well.
	pendingMessages = 64 << 10
	pendingBytes    = bytesAtOnce
)

// tenant is one that was admitted, and what is left of its rights.
type tenant struct {
	name       string
	kind       *kind
	subjects   []string // on which it may publish
	account    *account
	proxy      *Proxy
	connection *nats.Conn
	rules      rules

	limits *limits

	// consumers are those that there may be, each with the number of its making, looked is when the server was last asked
	// which there are, and unheard counts refusals without an answer. Only pass uses these, which one goroutine calls.
	consumers map[consumer]int
	counted   map[consumer]*nats.Subscription // how fetches from those are counted whose kind is serial
	creations int
	looking   bool
	looked    time.Time
	unheard   int
	untold    rate.Sometimes

	gone    chan map[consumer]int // what a look has found to be gone
	running sync.WaitGroup        // looks
	ending  sync.Mutex            // held while a look begins, so that close waits for each
	ended   bool                  // no look begins any more; guarded by ending

	admitted int // how often it was admitted and not released; guarded by proxy.mu
}

// limits are what is left of what one tenant may send. They outlive a worker: one that ends is started again.
type limits struct {
	kept, asked, entries, fetches, refused, hasty *rate.Limiter

	barred   time.Time // until when it is kept out; guarded by Proxy.mu
	released time.Time // when its worker ended; zero while it runs; guarded by Proxy.mu
}

// limitsLast is for how long limits are remembered of a tenant that is gone: by then it may send as one that never
// sent anything.
const limitsLast = 2 * time.Minute

func newLimits(k *kind) *limits {
	return &limits{
		kept: rate.NewLimiter(k.bytesPerSecond, k.bytesAtOnce), asked: rate.NewLimiter(bytesPerSecond, bytesAtOnce),
		entries: rate.NewLimiter(entriesPerSecond, entriesAtOnce),
		fetches: rate.NewLimiter(fetchesPerSecond, fetchesAtOnce), refused: rate.NewLimiter(refusedPerSecond, refusedAtOnce),
		hasty: rate.NewLimiter(hastyPerSecond, hastyAtOnce),
	}
}

// newTenant returns one that has no connection yet.
func newTenant(name string, subjects []string, r rules, a *account, p *Proxy) *tenant {
	t := &tenant{
		name: name, kind: a.kind, subjects: subjects, account: a, proxy: p, limits: p.limitsOf(name, a.kind),
		consumers: map[consumer]int{}, counted: map[consumer]*nats.Subscription{}, rules: r,
		untold: rate.Sometimes{Interval: untoldEvery}, gone: make(chan map[consumer]int, 1),
	}
	t.rules.own = a.has
	if a.kind.serial {
		t.rules.own = func(c consumer) bool { _, has := t.consumers[c]; return has }
	}
	if a.left != "" {
		for _, c := range a.consumers() {
			t.consumers[c] = t.creations
		}
	}
	return t
}

// connect opens the tenant's own connection of the proxy, so that no tenant waits for another.
func (t *tenant) connect() (err error) {
	t.connection, err = nats.Connect("", nats.InProcessServer(t.proxy.server), nats.MaxReconnects(-1),
		nats.Name("proxy of "+t.name), nats.ErrorHandler(t.troubled))
	if err != nil {
		return err
	}
	requests, err := t.connection.Subscribe(t.account.requests()+">", t.pass)
	if err == nil {
		err = requests.SetPendingLimits(pendingMessages, pendingBytes)
	}
	_, errAnswers := t.connection.Subscribe(t.account.answers()+">", t.answer)
	err = errors.Join(err, errAnswers)
	consumers := t.account.consumers()
	if t.proxy.options.Instance != "" {
		consumers = nil // the others end the connection of a leaf node that wants to hear requests of JetStream
	}
	for _, consumer := range consumers {
		_, errCount := t.connection.Subscribe(nextMessage+consumer.stream+"."+consumer.name, t.count)
		err = errors.Join(err, errCount)
	}
	if err = errors.Join(err, t.connection.Flush()); err != nil {
		t.close()
	}
	return err
}

// close ends the connection and waits for what uses it.
func (t *tenant) close() {
	t.ending.Lock()
	t.ended = true // a request that is being passed may still want a look
	t.ending.Unlock()
	t.connection.Close()
	t.running.Wait()
}

// requests begins the subjects on which the account's requests come, and answers those on which their answers do.
func (a *account) requests() string { return prefix + strconv.Itoa(a.number) + "." }
func (a *account) answers() string  { return inbox + a.name + "." }

// troubled is called where more of the tenant has come than can wait; what came then is lost.
func (t *tenant) troubled(_ *nats.Conn, _ *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) {
		t.proxy.bar(t)
	}
}

// pass hands a request on, as it is or harmless, or answers why not. Where no answer can be given safely there is none,
// and of a refusal that nobody asked to hear the engine's log tells.
func (t *tenant) pass(request *nats.Msg) {
	subject := strings.TrimPrefix(request.Subject, t.account.requests())
	asker, answerable := strings.CutPrefix(request.Reply, answerPrefix)
	if request.Reply != "" && !answerable {
		return
	}
	passed, err := t.judge(subject, request)
	switch {
	case err == nil && answerable:
		passed.Reply = t.account.answers() + asker
	case err != nil && !t.limits.of(err).Allow():
		t.proxy.bar(t)
		return
	case err != nil && answerable:
		passed = refusal(subject, request.Reply, err)
	case err != nil:
		t.unheard++
		t.untold.Do(func() {
			t.proxy.options.Logger.Warn("NATS did not take what was told without asking for an answer; who told it may be of "+
				"an earlier version, which does not send it again", t.kind.name, t.name, "messages", t.unheard, "subject",
				subject, "error", err)
		})
		return
	}
	t.publish(passed)
}

// of returns the limit on refusals with this reason.
func (l *limits) of(err error) *rate.Limiter {
	if reason, is := errors.AsType[*refusedError](err); is && reason.code == http.StatusTooManyRequests {
		return l.hasty
	}
	return l.refused
}

// judge returns a request as it goes on, or an error that says why it does not.
func (t *tenant) judge(subject string, request *nats.Msg) (*nats.Msg, error) {
	bucket := t.limits.kept
	if strings.HasPrefix(subject, api) {
		bucket = t.limits.asked
	}
	size := request.Size()
	if size > t.kind.maxMessage {
		return nil, t.kind.tooLarge(size)
	}
	if !bucket.AllowN(time.Now(), size) {
		return nil, errTooFast
	}
	if wire.IsEntry(subject) && !t.limits.entries.Allow() {
		return nil, errTooFast
	}
	if place, is := strings.CutPrefix(subject, createConsumer); is {
		return t.create(place, request.Data)
	}
	passed, err := t.rules.pass(subject, request.Header, request.Data)
	if c, is := consumerOf(subject); is && err == nil && strings.HasPrefix(subject, deleteConsumer) {
		t.gaveUp(c)
	}
	return passed, err
}

// count counts a request for messages. Such requests do not pass the proxy: who fetches gets its messages from the
// server, with where each lies, which a client of NATS cannot hand on.
func (t *tenant) count(*nats.Msg) {
	if !t.limits.fetches.Allow() {
		t.proxy.bar(t)
	}
}

// answer hands an answer back.
func (t *tenant) answer(answer *nats.Msg) {
	asker := strings.TrimPrefix(answer.Subject, t.account.answers())
	t.publish(&nats.Msg{Subject: answerPrefix + asker, Header: answer.Header, Data: answer.Data})
}

// publish fails when the proxy is closed: then nobody waits for the answer.
func (t *tenant) publish(message *nats.Msg) { _ = t.connection.PublishMsg(message) }

// refusedError says why a request does not go on, in JetStream's terms.
type refusedError struct {
	code, number int // HTTP's and JetStream's own; number may be 0
	reason       string
}

func (e *refusedError) Error() string { return e.reason }

// refusal is the answer, in JetStream's form, to a request on subject that does not go on.
func refusal(subject, reply string, reason error) *nats.Msg {
	refused := &refusedError{code: 403, reason: reason.Error()}
	_ = errors.As(reason, &refused)
	if strings.HasPrefix(subject, directGet) {
		return &nats.Msg{Subject: reply, Header: nats.Header{
			"Status": {strconv.Itoa(refused.code)}, "Description": {refused.reason},
		}}
	}
	told := map[string]any{"code": refused.code, "description": refused.reason}
	if refused.number != 0 {
		told["err_code"] = refused.number
	}
	encoded, _ := json.Marshal(map[string]any{"error": told}) // of such it never fails
	return &nats.Msg{Subject: reply, Data: encoded}
}

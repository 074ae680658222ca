package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/workers/agent"
)

// What hosts ask of the gangs that they are in.
const (
	askGangPath    = join.AskPrefix + "gangs/ask"
	overGangPath   = join.AskPrefix + "gangs/over"
	reportGangPath = join.AskPrefix + "gangs/report"
)

// overGang is what a host says of a gang whose first it is.
type overGang struct {
	ID   string `json:"id"`
	Host string `json:"host"`
}

// WithGangs answers hosts which of them run an attempt together, and has the rest answer all else. A host speaks for
// itself alone, and asks for attempts that it was given.
func (s Serving) WithGangs(gangs agent.Gangs) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", s.Handler())
	keys := &inputKeys{payload: s.Payload}
	mux.HandleFunc("POST "+askGangPath, func(w http.ResponseWriter, r *http.Request) { s.askGang(w, r, gangs, keys) })
	mux.HandleFunc("POST "+overGangPath, func(w http.ResponseWriter, r *http.Request) {
		var over overGang
		if !decode(w, r, &over) || !ownWord(w, r, over.Host) {
			return
		}
		if err := gangs.Over(r.Context(), over.ID, over.Host); err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, struct{}{})
	})
	mux.HandleFunc("POST "+reportGangPath, func(w http.ResponseWriter, r *http.Request) {
		var report gang.Report
		if !decode(w, r, &report) || !ownWord(w, r, report.Host) {
			return
		}
		if err := checkReport(report); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		wanted, err := gangs.Report(r.Context(), report)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, wanted)
	})
	return mux
}

// askGang answers a host that asks others to run an attempt with it.
func (s Serving) askGang(w http.ResponseWriter, r *http.Request, gangs agent.Gangs, keys *inputKeys) {
	var ask gang.Ask
	if !decode(w, r, &ask) || !ownWord(w, r, ask.Host) {
		return
	}
	given, err := s.Given(ask.Host, r.Header.Get(wire.ProofHeader))
	if err == nil {
		err = proveAsk(r.Context(), &ask, given, keys, time.Now())
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if err := ask.Validate(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	found, err := gangs.Ask(r.Context(), ask)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	found.Order, found.Given = nil, nil // which the host has
	s.write(w, r, found)
}

// ownWord reports whether a host speaks for itself, and refuses it where it does not.
func ownWord(w http.ResponseWriter, r *http.Request, host string) bool {
	of := access.HostOfCaller(r.Context())
	if of != "" && of != host {
		http.Error(w, fmt.Sprintf("host %s speaks for itself, and not for %.80q", of, host), http.StatusForbidden)
	}
	return of == "" || of == host
}

// proveAsk refuses to have others run what a host was not given, and notes in what it asks what that is. What cannot be
// read now is an unreadError.
func proveAsk(ctx context.Context, ask *gang.Ask, given *wire.Given, keys *inputKeys, now time.Time) error {
	if given == nil {
		return errors.New("it does not show which attempt it was given: upgrade the host, and join again")
	}
	if gang.ID(given.Run, given.Task, given.Attempt) != ask.ID {
		return fmt.Errorf("%.200q is not the attempt that it was given", ask.ID)
	}
	var order wire.GangOrder
	if err := json.Unmarshal(ask.Order, &order); err != nil {
		return fmt.Errorf("what the others are to run does not decode: %w", err)
	}
	key, err := keys.of(ctx, *given)
	if err != nil {
		return err
	}
	command, err := given.CheckGang(order, key, now)
	if err != nil {
		return err
	}
	if ask.Order, err = json.Marshal(order); err != nil { // and nothing else that the host says
		return fmt.Errorf("encode what the others are to run: %w", err)
	}
	ask.Least, ask.Most = command.Gang()
	ask.Most = min(ask.Most, gang.MostHosts)
	ask.Given = given.Encode()
	return nil
}

// mostInputKeys bounds how many keys are remembered.
const mostInputKeys = 1000

// inputKeys are the keys of tasks whose input is an artifact: a gang is asked for several times a second.
type inputKeys struct {
	payload func(ctx context.Context, digest string) (json.RawMessage, error)

	mu  sync.Mutex
	all map[inputKey]wire.ResultKey // guarded by mu
}

// inputKey is all that the key of a task with such an input depends on.
type inputKey struct {
	stage          predictor.StageID
	command        bool
	version, input string
}

// of is the key of the task that was given.
func (k *inputKeys) of(ctx context.Context, given wire.Given) (wire.ResultKey, error) {
	if given.Input == "" {
		return given.Key, nil
	}
	at := inputKey{given.Stage, given.Command, given.CacheVersion, given.Input}
	k.mu.Lock()
	key, known := k.all[at]
	k.mu.Unlock()
	if known {
		return key, nil
	}
	input, err := k.payload(ctx, given.Input)
	if err != nil {
		return wire.ResultKey{}, &unreadError{err}
	}
	key = wire.NewResultKey(given.Stage, given.Command, given.CacheVersion, input)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil || len(k.all) >= mostInputKeys {
		k.all = map[inputKey]wire.ResultKey{}
	}
	k.all[at] = key
	return key, nil
}

const (
	// mostWhy bounds what a host says of why a gang has no room there, in bytes, and mostAddress its phase and where it is
	// reached: what all hosts say lies in one document.
	mostWhy     = 1000
	mostAddress = 100
)

// checkReport refuses a report that no agent makes, and cuts off what it says at length.
func checkReport(report gang.Report) error {
	for i := range report.Gangs {
		one := &report.Gangs[i]
		one.Why = strings.ToValidUTF8(one.Why[:min(len(one.Why), mostWhy)], "")
		switch {
		case one.PerHour < 0 || one.PerHour > wire.MostHostPrice:
			return fmt.Errorf("host %s costs %s per hour in gang %.80q; want 0 to %s", report.Host, one.PerHour, one.ID,
				wire.MostHostPrice)
		case len(one.Address) > mostAddress || len(one.Phase) > mostAddress:
			return fmt.Errorf("host %s is %.80q at %.80q in gang %.80q; want a phase, and an address and a port", report.Host,
				one.Phase, one.Address, one.ID)
		}
	}
	return nil
}

// Ask implements agent.Gangs.
func (a *asker) Ask(ctx context.Context, ask gang.Ask) (found gang.Gang, err error) {
	run, task, attempt := gang.AttemptOf(ask.ID)
	err = a.prove(ctx, a.proofs.Given(run, task, attempt), askGangPath, ask, &found)
	if refused, is := errors.AsType[*refusedError](err); is && refused.status == http.StatusForbidden {
		err = fmt.Errorf("%w: %w", agent.ErrRefused, err)
	}
	return found, err
}

// Over implements agent.Gangs.
func (a *asker) Over(ctx context.Context, id, host string) error {
	return a.post(ctx, overGangPath, overGang{id, host}, nil)
}

// Report implements agent.Gangs.
func (a *asker) Report(ctx context.Context, report gang.Report) (wanted []gang.Wanted, err error) {
	err = a.post(ctx, reportGangPath, report, &wanted)
	return wanted, err
}

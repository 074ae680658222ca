package host

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/join"
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

// WithGangs answers hosts which of them run an attempt together, and has rest answer all else. A host speaks for itself
// alone, and asks for attempts that it was given; given is [Serving.Given].
func WithGangs(
	gangs agent.Gangs, given func(host, proof string) (*wire.Given, error), rest http.Handler, logger *slog.Logger,
) http.Handler {
	s, mux := Serving{Logger: logger}, http.NewServeMux()
	mux.Handle("/", rest)
	own := func(w http.ResponseWriter, r *http.Request, host string) bool {
		of := access.HostOfCaller(r.Context())
		if of != "" && of != host {
			http.Error(w, fmt.Sprintf("host %s speaks for itself, and not for %.80q", of, host), http.StatusForbidden)
		}
		return of == "" || of == host
	}
	mux.HandleFunc("POST "+askGangPath, func(w http.ResponseWriter, r *http.Request) {
		var ask gang.Ask
		if !decode(w, r, &ask) || !own(w, r, ask.Host) {
			return
		}
		if err := ask.Validate(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := proveAsk(&ask, given, r.Header.Get(wire.ProofHeader)); err != nil {
			s.refuse(w, r, err)
			return
		}
		found, err := gangs.Ask(r.Context(), ask)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		found.Order, found.Given = nil, nil // which the host has
		s.write(w, r, found)
	})
	mux.HandleFunc("POST "+overGangPath, func(w http.ResponseWriter, r *http.Request) {
		var over overGang
		if !decode(w, r, &over) || !own(w, r, over.Host) {
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
		if !decode(w, r, &report) || !own(w, r, report.Host) {
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

// proveAsk notes in what a host asks what its proof says that it was given; it has to be the attempt that it asks for.
func proveAsk(ask *gang.Ask, given func(host, proof string) (*wire.Given, error), proof string) error {
	attempt, err := given(ask.Host, proof)
	if err != nil {
		return err
	}
	ask.Given = nil
	if attempt == nil {
		return nil
	}
	if err := attempt.Whole(); err != nil {
		return err
	}
	if gang.ID(attempt.Run, attempt.Task, attempt.Attempt) != ask.ID {
		return fmt.Errorf("%.200q is not the attempt that it was given", ask.ID)
	}
	ask.Given = attempt.Encode()
	return nil
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

package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/autoscaler"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

const (
	// tellServerEvery is how often a server says that it is there.
	tellServerEvery = 2 * time.Second
	// goneFor is for how long a server is shown that is there no more: long enough for who looks after something was lost.
	goneFor = time.Hour
)

// newServerID makes up the name of a process.
func newServerID() string { return strings.ToLower(rand.Text()[:12]) }

// originOf tells the state directory of a machine from all others, without saying where it is.
func originOf(stateDir string) string {
	sum := sha256.Sum256([]byte(host.Name() + "\x00" + stateDir))
	return hex.EncodeToString(sum[:8])
}

// AloneBecause says why an engine can be no server beside others; empty where it can.
func AloneBecause(config *Config) string {
	var own []string
	for _, part := range []struct {
		own  bool
		what string
	}{
		{len(config.NATS.URLs) == 0, "NATS in its own process (--nats-url names one that others reach)"},
		{config.Temporal.Address == "", "Temporal in its own process (--temporal-address)"},
		{config.Ledger == "", "the ledger in a file (--ledger-url-file)"},
		{config.Artifacts == "" || config.Artifacts == InFiles, "artifacts in files (--artifacts s3://BUCKET/PREFIX)"},
	} {
		if part.own {
			own = append(own, part.what)
		}
	}
	return strings.Join(own, ", ")
}

// admitServer refuses to be a server beside others where what one of them keeps is not reached by all. One that was
// here before, on the same state directory, is none beside this one.
func (s *stores) admitServer(ctx context.Context) error {
	if len(s.config.NATS.URLs) == 0 {
		return nil // nobody else is there
	}
	if s.store.location != InFiles && s.config.Artifacts == "" { // it is where the state directory keeps them already
		config := *s.config
		config.Artifacts = s.store.location
		s.self.Alone = AloneBecause(&config)
	}
	others, err := s.members.List(ctx)
	if err != nil {
		return err
	}
	for _, other := range others {
		switch {
		case other.Origin == s.self.Origin:
			if err := s.members.Drop(ctx, other.ID); err != nil {
				return err
			}
		case s.self.Alone != "":
			return fmt.Errorf("server %s runs on this NATS already, and a server beside it cannot have what only one "+
				"reaches: this one would have %s", described(other), s.self.Alone)
		case other.Alone != "":
			return fmt.Errorf("server %s runs on this NATS already, and has what only one server reaches: %s; start it again "+
				"with those settings before this one", described(other), other.Alone)
		}
	}
	return nil
}

// described names a server for people.
func described(server loop.Server) string {
	if server.Address == "" {
		return server.Name
	}
	return server.Name + " (https://" + server.Address + ")"
}

// tellServers says that this server is there, and keeps up which others are, until ctx ends.
func (e *Engine) tellServers(ctx context.Context) {
	if len(e.config.NATS.URLs) == 0 {
		return // nobody else is there
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := e.members.Drop(last, e.self.ID); err != nil {
			e.logger.DebugContext(ctx, "the others find out by themselves that this server has gone", "error", err)
		}
	}()
	seen := sights{}
	for again := true; again; again = wait.For(ctx, tellServerEvery) {
		bounded, cancel := context.WithTimeout(ctx, tellServerEvery)
		self := e.self
		self.Term, self.LeadsSince = e.lead.since()
		if err := e.members.Put(bounded, self); err != nil && ctx.Err() == nil {
			e.logger.DebugContext(ctx, "the others are not told that this server is there", "error", err)
		}
		cancel()
		if there, err := e.members.List(ctx); err == nil {
			there = slices.DeleteFunc(there, func(one loop.Server) bool { return one.ID == e.self.ID })
			gone := seen.look(append([]loop.Server{e.self}, there...), time.Now())
			e.others.Store(&there)
			e.gone.Store(&gone)
		}
	}
}

// sights are the servers that were seen within goneFor, by ID, each as it was seen last.
type sights map[string]loop.Server

// look takes in which servers are there, this one among them, and returns those that were seen and are there no more,
// the last one first, until another has started on their state directory.
func (s sights) look(there []loop.Server, now time.Time) (gone []loop.Server) {
	for _, one := range there {
		s[one.ID] = one
	}
	for id, one := range s {
		if slices.ContainsFunc(there, func(other loop.Server) bool { return other.ID == id }) {
			continue
		}
		if now.Sub(one.Seen) >= goneFor || slices.ContainsFunc(there, func(other loop.Server) bool {
			return other.Origin != "" && other.Origin == one.Origin
		}) {
			delete(s, id)
			continue
		}
		gone = append(gone, one)
	}
	slices.SortFunc(gone, func(a, b loop.Server) int { return cmp.Or(b.Seen.Compare(a.Seen), cmp.Compare(a.ID, b.ID)) })
	return gone
}

// serversThere are the servers of the stack, this one first.
func (r *reports) serversThere() []loop.Server {
	all := []loop.Server{r.self}
	if others := r.others.Load(); others != nil {
		all = append(all, *others...)
	}
	return all
}

// serverList are the servers of the stack with who leads, this one first, and those last that are there no more.
func (e *Engine) serverList() []web.StackServer {
	standing := e.leader.Standing()
	var all []web.StackServer
	for i, one := range e.serversThere() {
		if own := i == 0; own {
			one.Seen = e.now()
			one.Term, one.LeadsSince = e.lead.since()
			all = append(all, stackServer(one, standing.Own))
			all[0].Own = true
		} else {
			all = append(all, stackServer(one, standing.Other && standing.Server == one.ID))
		}
	}
	if lost := e.gone.Load(); lost != nil {
		for _, one := range *lost {
			all = append(all, stackServer(one, false))
			all[len(all)-1].Gone = true
		}
	}
	return all
}

// stackServer is a server for who asks. What it says itself of its term counts only where it is seen to lead.
func stackServer(one loop.Server, leads bool) web.StackServer {
	told := web.StackServer{
		Name: one.Name, Leads: leads, Version: one.Version, StartedAt: one.StartedAt, SeenAt: one.Seen.UTC(),
	}
	if leads {
		told.Term, told.LeadsSince = one.Term, one.LeadsSince
	}
	if one.Address != "" {
		told.Address = "https://" + one.Address
	}
	return told
}

// whereLeads says where the server is found that leads.
func (e *Engine) whereLeads(standing autoscaler.Standing) string {
	for _, one := range e.serversThere() {
		if one.ID == standing.Server {
			return described(one)
		}
	}
	return "spillway hosts lists the servers"
}

// serverAddresses are those by which hosts reach the servers, this one first.
func (r *reports) serverAddresses(context.Context) (all []string) {
	for _, one := range r.serversThere() {
		if one.Address != "" && !slices.Contains(all, one.Address) {
			all = append(all, one.Address)
		}
	}
	return all
}

// serversFrom are those as a host sees them that has reached this one at an address.
func (e *Engine) serversFrom(ctx context.Context, reached string) []string {
	own := e.self.Address
	return append([]string{reached}, slices.DeleteFunc(e.serverAddresses(ctx), func(at string) bool {
		return at == own || at == reached
	})...)
}

// writesLedger says whether this server writes the ledger: who leads does, and where it is in a file the only one.
func (s *stores) writesLedger() bool { return s.config.Ledger == "" || s.lead.leads() }

// another says that another server is seen to lead.
func (r *reports) another() bool {
	leader := r.led.Load()
	return leader != nil && !r.lead.leads() && leader.Standing().Other
}

// hearAlerts shows the alerts that another server sends, which leads, until ctx ends.
func (r *reports) hearAlerts(ctx context.Context) error {
	heard, err := r.stream.Conn().Subscribe(wire.AlertSubjects, func(message *nats.Msg) {
		var alert alerting.Alert
		if json.Unmarshal(message.Data, &alert) == nil && r.alerts.Learn(alert) {
			r.observer.feed.Alerted(alert)
		}
	})
	if err != nil {
		return fmt.Errorf("hear alerts: %w", err)
	}
	<-ctx.Done()
	_ = heard.Unsubscribe() // the connection ends soon
	return nil
}

// learnAlerts takes in the alerts that another server has sent.
func (r *reports) learnAlerts(ctx context.Context) {
	stored, err := alerts.Stored(ctx, r.stream, alertsKept)
	if err != nil && ctx.Err() == nil {
		r.logger.WarnContext(ctx, "which alerts were sent before is not known: some may come again", "error", err)
	}
	for _, alert := range slices.Backward(stored) {
		r.alerts.Learn(alert)
	}
}

// supersededSubject carries what hosts tell of superseded checkpoints from the server that they tell it to the one that
// leads. Nobody else may publish or read it.
const supersededSubject = "spillway.servers.superseded"

// supersededTold is that message.
type supersededTold struct {
	Older []activities.Ref `json:"older"`
	Made  time.Time        `json:"made"`
}

// superseded notes checkpoints that newer ones have replaced for good, where artifacts are collected. What gets lost on
// the way goes when its run has ended.
func (s *stores) superseded(older []activities.Ref, made time.Time) {
	if s.lead.leads() || len(s.config.NATS.URLs) == 0 {
		s.space.Superseded(older, made)
		return
	}
	data, err := json.Marshal(supersededTold{older, made})
	if err = cmp.Or(err, s.stream.Conn().Publish(supersededSubject, data)); err != nil {
		s.logger.Debug("the leading server is not told of superseded checkpoints", "error", err)
	}
}

// hearSuperseded takes in what others are told of superseded checkpoints, until ctx ends.
func (s *stores) hearSuperseded(ctx context.Context) {
	heard, err := s.stream.Conn().Subscribe(supersededSubject, func(message *nats.Msg) {
		var told supersededTold
		if json.Unmarshal(message.Data, &told) == nil {
			s.space.Superseded(told.Older, told.Made)
		}
	})
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.logger.WarnContext(ctx, "superseded checkpoints of hosts at other servers stay until their runs end", "error", err)
		return
	}
	<-ctx.Done()
	_ = heard.Unsubscribe() // of a connection that may have ended
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
)

// patience bounds what a test waits for.
const patience = 30 * time.Second

// twoHosts decides of gangs of the host h1 and one that always holds its part.
type twoHosts struct {
	mu    sync.Mutex
	all   map[string]*gang.Gang // by ID
	asked int                   // of gangs that were formed
	again chan struct{}         // closed and replaced when asked has grown
	drops int                   // so many times a part that is held is not wanted for a moment
	held  string                // the gang that is formed when the host reports next
}

func newTwoHosts() *twoHosts {
	return &twoHosts{all: map[string]*gang.Gang{}, again: make(chan struct{})}
}

func (g *twoHosts) Ask(_ context.Context, ask gang.Ask) (gang.Gang, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.all[ask.ID]
	if one == nil {
		one = &gang.Gang{Ask: ask, Members: []gang.Member{
			{Host: ask.Host, Instance: ask.Instance, Phase: gang.Asked}, {Host: "h2", Instance: "1", Phase: gang.Held},
		}}
		g.all[ask.ID] = one
	}
	if one.Formed {
		g.asked++
		close(g.again)
		g.again = make(chan struct{})
	}
	return *one, nil
}

func (g *twoHosts) Over(_ context.Context, id, _ string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, id)
	return nil
}

func (g *twoHosts) Report(_ context.Context, report gang.Report) (wanted []gang.Wanted, _ error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if one := g.all[g.held]; one != nil {
		one.Members[0].Phase, one.Formed = gang.Held, true
	}
	g.held = ""
	for _, told := range report.Gangs {
		if one := g.all[told.ID]; one == nil || told.Phase != gang.Held || one.Formed {
			continue
		}
		if g.held = told.ID; g.drops > 0 {
			g.drops--
			return nil, nil
		}
	}
	for id, one := range g.all {
		if one.Broken == "" {
			wanted = append(wanted, gang.Wanted{ID: id, Size: one.Size, For: gang.HoldFor, Start: one.Formed})
		}
	}
	return wanted, nil
}

// breaks has all gangs break.
func (g *twoHosts) breaks(why string, lost bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, one := range g.all {
		one.Broken, one.Lost = why, lost
	}
}

// askedAgain waits until a gang is asked for that was formed, several times from now on.
func (g *twoHosts) askedAgain(ctx context.Context, times int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	g.mu.Lock()
	until, again := g.asked+times, g.again
	g.mu.Unlock()
	for {
		select {
		case <-again:
		case <-ctx.Done():
			return errors.New("nobody asks for the gang any more")
		}
		g.mu.Lock()
		enough := g.asked >= until
		again = g.again
		g.mu.Unlock()
		if enough {
			return nil
		}
	}
}

// startInGangs runs an agent that takes part in gangs.
func startInGangs(t *testing.T, gangs Gangs, edit func(*Options)) *host {
	t.Helper()
	h, _, _ := startWithStore(t, 1, func(o *Options) {
		o.Gangs, o.TrainingAddress = gangs, "127.0.0.1"
		if edit != nil {
			edit(o)
		}
	})
	return h
}

// onTwoHosts is a command for two hosts.
func onTwoHosts(script string) wire.Command {
	c := shell(script)
	c.Hosts = 2
	return c
}

// A gang that nobody asks for is forgotten; to prepare an attempt may take minutes.
func TestAGangIsAskedForWhileItsAttemptIsPrepared(t *testing.T) {
	t.Parallel()
	gangs := newTwoHosts()
	h := startInGangs(t, gangs, func(o *Options) {
		o.Secrets = func(ctx context.Context, _ wire.Task, _ int) (map[string]string, error) {
			return nil, gangs.askedAgain(ctx, 2)
		}
	})
	if _, err := h.command(t, "fit-1", onTwoHosts("true"), confides).Wait(t); err != nil {
		t.Errorf("an attempt that is prepared for long: %v", err)
	}
	if records := h.records(); len(records) != 1 || records[0].Outcome != predictor.Succeeded {
		t.Errorf("the attempts are %+v, want one that has succeeded", records)
	}
}

// A program that is asked to end may need its other hosts for that, as to save what it has.
func TestAGangIsAskedForWhileItsProgramEnds(t *testing.T) {
	t.Parallel()
	gangs := newTwoHosts()
	h := startInGangs(t, gangs, nil)
	directory := t.TempDir()
	c := onTwoHosts(`cd ` + directory + `
		trap 'touch asked; while [ ! -e enough ]; do sleep 0.05; done; touch saved; exit 0' TERM
		touch there; while :; do sleep 0.05; done`)
	c.Grace = 2 * patience
	a := h.command(t, "fit-1", c, nil)
	until := func(name string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(directory, name)); err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not there", name)
			}
		}
	}
	until("there")
	a.Cancel()
	until("asked")
	if err := gangs.askedAgain(t.Context(), 2); err != nil {
		t.Errorf("a program ends: %v", err)
	}
	if err := os.WriteFile(filepath.Join(directory, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until("saved")
	<-a.Closed()
}

// waitingStore has its first reader wait for its context to end, or for the test to fail.
type waitingStore struct {
	*commandtest.Store

	began chan struct{} // has one
	once  sync.Once
}

func (s *waitingStore) Open(ctx context.Context, digest string) (r io.ReadCloser, err error) {
	s.once.Do(func() { err = prepares(ctx, s.began) })
	if err != nil {
		return nil, err
	}
	return s.Store.Open(ctx, digest)
}

// prepares tells that the preparation has begun, and goes on until its context ends.
func prepares(ctx context.Context, began chan struct{}) error {
	began <- struct{}{}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return errors.New("the preparation goes on")
	}
}

func TestAGangThatBreaksEndsThePreparationOfItsAttempt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		secrets bool // it is these that are waited for, not a file
		lost    bool
		outcome predictor.Outcome
	}{
		{"a host is lost while secrets are asked for", true, true, predictor.Lost},
		{"a host is lost while files are fetched", false, true, predictor.Lost},
		{"what ran on a host has failed", false, false, predictor.Failed},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			gangs, began := newTwoHosts(), make(chan struct{}, 1)
			store := &waitingStore{Store: commandtest.NewStore(), began: began}
			var once sync.Once
			h := startInGangs(t, gangs, func(o *Options) {
				if o.Store = store; !row.secrets {
					return
				}
				o.Store = store.Store
				o.Secrets = func(ctx context.Context, _ wire.Task, _ int) (_ map[string]string, err error) {
					once.Do(func() { err = prepares(ctx, began) })
					return nil, err
				}
			})
			file, err := store.Put(t.Context(), strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			c := onTwoHosts("true")
			c.Files = []wire.CommandFile{{Path: "x", Artifact: activities.Ref{Digest: file.Digest, Bytes: file.Bytes}}}
			a := h.command(t, "fit-1", c, func(task *wire.Task) { task.Secrets, task.MaxAttempts = row.secrets, 2 })
			<-began
			gangs.breaks("host h2 is lost", row.lost)
			if _, err := a.Wait(t); err != nil {
				t.Errorf("the attempt after: %v", err)
			}
			records := h.records()
			if len(records) != 2 || records[0].Outcome != row.outcome ||
				!strings.Contains(records[0].Error, "the gang is over: host h2 is lost") {
				t.Errorf("the attempts are %s; want first one that is %s with its gang", outcomes(records), row.outcome)
			}
		})
	}
}

// A host drops what it holds for a gang when a server that is behind does not want it for a moment.
func TestAHostThatHasDroppedItsPartOfAGangSaysSo(t *testing.T) {
	t.Parallel()
	const id, name, instance = "r/fit-1/1", "h2", "1"
	a := &Agent{id: name}
	g := &gangs{agent: a}
	ask := gang.Ask{ID: id, Host: "h1", Instance: "1", Least: 2, Most: 2, Size: of(1, 64)}
	var hosts []gang.Host
	for _, host := range []string{"h1", name} {
		hosts = append(hosts, gang.Host{
			ID: host, Instance: instance, Free: of(1, 64), Capacity: of(1, 64), Takes: true,
		})
	}
	now := time.Now()
	state := gang.State{}.Hear(ask, now).Decide(hosts, now)
	for _, host := range hosts {
		state = state.Take(host.ID, instance, []gang.Told{{ID: id, Phase: gang.Held}})
	}
	state = state.Decide(hosts, now)
	g.reconcile(t.Context(), state.Of(name, instance, now))
	state = state.Take(name, instance, g.report()).Decide(hosts, now)
	if got, _ := state.Find(id); !got.Formed || got.Broken == "" || !got.Lost {
		t.Errorf("a host holds its part no more, and the gang is %+v; want it lost", got)
	}
	g.reconcile(t.Context(), state.Of(name, instance, now))
	if told := g.report(); len(told) > 0 {
		t.Errorf("the gang is over, and the host tells %+v of it", told)
	}
}

func TestAnAttemptWhoseHostHasDroppedItsRoomAsksForItsGangAnew(t *testing.T) {
	t.Parallel()
	gangs := newTwoHosts()
	gangs.drops = 1
	h := startInGangs(t, gangs, nil)
	if _, err := h.command(t, "fit-1", onTwoHosts("true"), nil).Wait(t); err != nil {
		t.Error(err)
	}
	gangs.mu.Lock()
	defer gangs.mu.Unlock()
	if gangs.drops > 0 {
		t.Error("nothing was dropped")
	}
}

func outcomes(records []predictor.Record) (all []string) {
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s (%s)", r.Outcome, r.Error))
	}
	return all
}

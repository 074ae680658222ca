package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestABurstIsAnsweredAtOnceAndItsDecisionsAreStored(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	opts.TickEvery = time.Hour // only the hint asks for a decision
	var leading atomic.Int32
	opts.Leading = func(term uint64) {
		if term > 0 {
			leading.Add(1)
		} else {
			leading.Add(10)
		}
	}
	term := serve(t, leader(t, opts), new(fakePorts).ports())
	eventually(t, "leading", func() bool { return leading.Load() == 1 })
	publish(t, js, predictor.RunStarted{Run: "run-1", Pipeline: "train", App: "digits", Build: "b1", At: time.Now()},
		scheduled(train, 5))
	eventually(t, "slots", func() bool { return slots(t, opts.Plans, train) > 0 })
	plan, _, err := opts.Plans.Current(t.Context())
	if err != nil || plan.Term != 1 || len(plan.Placements) == 0 || len(plan.Decisions) == 0 {
		t.Errorf("plan in force: %+v, %v; want term 1 with placements and decisions", plan, err)
	}
	eventually(t, "decisions", func() bool {
		var ids []string
		for _, message := range messages(t, js) {
			if message.Decision != nil {
				ids = append(ids, message.Decision.ID)
			}
		}
		return slices.ContainsFunc(plan.Decisions, func(d predictor.Decision) bool { return slices.Contains(ids, d.ID) })
	})
	term.stop()
	if err := term.wait(t); !errors.Is(err, context.Canceled) || leading.Load() != 11 {
		t.Errorf("the term ended with %v, leading told %d times", err, leading.Load())
	}
}

func TestAChangedGoalIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	opts.TickEvery = time.Hour // only what happens asks for a decision
	opts.Functions.Enabled, opts.Functions.Concurrency = true, 4
	opts.Functions.Classes = []quantity.Bytes{2 * quantity.GiB}
	opts.Functions.PerGiBSecond = quantity.USD // dear: only haste pays for it
	goal := predictor.Goal{Minimise: predictor.Cost}
	start := predictor.RunStarted{Run: "run-1", Pipeline: "train", App: "digits", Build: "b1", Goal: goal, At: time.Now()}
	publish(t, js, start, scheduled(train, 1000), record(train, "train-1"))
	serve(t, leader(t, opts), new(fakePorts).ports())
	functions := func() (slots int) {
		plan, _, err := opts.Plans.Current(t.Context())
		for _, grant := range plan.Grants {
			if err == nil && grant.Stage == train && grant.Venue == predictor.Function {
				slots += grant.Slots
			}
		}
		return slots
	}
	publish(t, js, scheduled(train, 1))
	eventually(t, "slots", func() bool { return slots(t, opts.Plans, train) > 0 })
	if bought := functions(); bought != 0 {
		t.Fatalf("a run that minimises cost has %d functions", bought)
	}
	publish(t, js, predictor.GoalChanged{Run: "run-1", Goal: predictor.Goal{Minimise: predictor.Latency}, At: time.Now()})
	eventually(t, "functions", func() bool { return functions() > 0 })
}

func TestASecondLeaderDeposesTheFirst(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	first := serve(t, leader(t, opts), new(fakePorts).ports())
	publish(t, js, scheduled(train, 2))
	eventually(t, "slots of the first", func() bool { return slots(t, opts.Plans, train) > 0 })
	serve(t, leader(t, opts), new(fakePorts).ports())
	eventually(t, "the second leads", func() bool {
		plan, _, err := opts.Plans.Current(t.Context())
		return err == nil && plan.Term == 2
	})
	publish(t, js, scheduled(score, 3)) // both see it, one may act
	eventually(t, "slots of the second", func() bool { return slots(t, opts.Plans, score) > 0 })
	if err := first.wait(t); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first leader ended with %v, want %v", err, ErrSuperseded)
	}
	plan, _, err := opts.Plans.Current(t.Context())
	if err != nil || plan.Term != 2 {
		t.Errorf("plan in force: term %d, %v; want 2", plan.Term, err)
	}
}

func TestALeaderWithoutRenewalsStops(t *testing.T) {
	t.Parallel()
	js := stream(t)
	fake := new(fakePorts)
	l := leader(t, options(t, js))
	l.lasts = time.Second
	term := serve(t, l, fake.ports())
	eventually(t, "renewals", func() bool { return fake.renewals.Load() > 2 })
	fake.silent.Store(true)
	if err := term.wait(t); !errors.Is(err, ErrLeaseExpired) {
		t.Errorf("the term ended with %v, want %v", err, ErrLeaseExpired)
	}
}

func TestAStoppingProcessHandsOverWithACheckpoint(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	last := publish(t, js, scheduled(train, 2), record(train, "train-1"))
	term := serve(t, leader(t, opts), new(fakePorts).ports())
	eventually(t, "slots", func() bool { return slots(t, opts.Plans, train) > 0 })
	term.stop()
	if err := term.wait(t); !errors.Is(err, context.Canceled) {
		t.Errorf("the term ended with %v, want %v", err, context.Canceled)
	}
	saves, err := openCheckpoints(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := saves.load(t.Context())
	if err != nil || saved.Term != 1 || saved.Sequence < last {
		t.Errorf("checkpoint: term %d, sequence %d, %v; want term 1 and at least sequence %d", saved.Term, saved.Sequence,
			err, last)
	}
}

// recovered returns the state that a new leader starts with.
func recovered(t *testing.T, js jetstream.JetStream, term uint64) predictor.State {
	t.Helper()
	l := leader(t, options(t, js))
	tm := newTerm(l, &planWriter{term: term}, newRenewal(time.Minute, time.Now()), new(fakePorts).ports())
	tm.quiet = time.Hour // whatever the machine does: a stream that is held up never ends
	from, err := tm.load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	incoming := make(chan read, 16)
	done := make(chan error, 1)
	go func() { done <- l.follow(ctx, from, incoming) }()
	limited, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := tm.catchUp(limited, incoming); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return tm.state
}

// streamed is what a stream comes to up to a message.
func streamed(t *testing.T, js jetstream.JetStream, last uint64) (state predictor.State) {
	t.Helper()
	reached := errors.New("reached")
	err := loop.Follow(t.Context(), js, 0, nil, func(line loop.Line) error {
		state = predictor.Pass(state, line.Stored)
		if line.Message.Event != nil {
			state = predictor.Fold(state, line.Message.Event)
		}
		if line.Sequence >= last {
			return reached
		}
		return nil
	})
	if !errors.Is(err, reached) {
		t.Fatal(err)
	}
	return state
}

func TestACheckpointAndItsTailAreAsGoodAsTheWholeStream(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var events []predictor.Event
	for i := range 60 {
		run, task, now := fmt.Sprintf("run-%d", i%4), fmt.Sprintf("train-%d", i), at.Add(time.Duration(i)*time.Second)
		hint, line := scheduled(train, 3), record(train, task)
		hint.Run, hint.At, line.Run, line.At = run, now, run, now
		line.Usage.Input, line.Usage.PeakMemory = line.Usage.Input*line.Usage.Input, line.Usage.PeakMemory+line.Usage.Input
		events = append(events, predictor.RunStarted{Run: run, Pipeline: "train", App: "digits", Build: "b1", At: now}, hint,
			predictor.AttemptStarted{
				Run: run, Stage: train, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "laptop",
				At: now,
			}, line,
			predictor.BacklogObserved{Stage: train, Tasks: i, At: now})
	}
	for name, harm := range map[string]func(t *testing.T, js jetstream.JetStream, sequence uint64){
		"a good checkpoint": func(*testing.T, jetstream.JetStream, uint64) {},
		"a damaged checkpoint": func(t *testing.T, js jetstream.JetStream, _ uint64) {
			t.Helper()
			overwrite(t, js, "{]")
		},
		"a checkpoint of a later version": func(t *testing.T, js jetstream.JetStream, _ uint64) {
			t.Helper()
			overwrite(t, js, `{"v":99}`)
		},
		"a checkpoint of another stream": func(t *testing.T, js jetstream.JetStream, sequence uint64) {
			t.Helper()
			overwrite(t, js, fmt.Sprintf(`{"v":%d,"term":1,"sequence":%d,"state":{}}`, wire.Version, sequence+100_000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stream(t)
			half := len(events) / 2
			sequence := publish(t, js, events[:half]...)
			state := streamed(t, js, sequence)
			v, err := openCheckpoints(t.Context(), js)
			if err != nil {
				t.Fatal(err)
			}
			if err := v.save(t.Context(), checkpoint{Version: wire.Version, Term: 1, Sequence: sequence, State: state}); err !=
				nil {
				t.Fatal(err)
			}
			harm(t, js, sequence)
			want := asJSON(t, streamed(t, js, publish(t, js, events[half:]...)))
			if diff := cmp.Diff(want, asJSON(t, recovered(t, js, 2))); diff != "" {
				t.Errorf("state (-whole stream +recovered):\n%s", diff)
			}
		})
	}
}

func overwrite(t *testing.T, js jetstream.JetStream, value string) {
	t.Helper()
	bucket, err := js.KeyValue(t.Context(), wire.StateBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.PutString(t.Context(), wire.StateKey, value); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableMessagesAndAPurgedStreamDoNotHoldUpALeader(t *testing.T) {
	t.Parallel()
	js := stream(t)
	publish(t, js, scheduled(train, 1))
	if _, err := js.Publish(t.Context(), wire.LoopSubject(wire.KindRecord), []byte("gossip")); err != nil {
		t.Fatal(err)
	}
	recovered(t, js, 1)
	stream, err := js.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	recovered(t, js, 2)
}

func TestTheNextLeaderKnowsWhatTheLastOneKnew(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	publish(t, js, scheduled(train, 2))
	fake := new(fakePorts)
	fake.tasks = 2
	l := leader(t, opts)
	l.lasts = 2 * time.Second
	first := serve(t, l, fake.ports())
	eventually(t, "slots", func() bool { return slots(t, opts.Plans, train) == 2 })
	fake.silent.Store(true) // as if killed: no checkpoint
	_ = first.wait(t)
	publish(t, js, scheduled(train, 1))
	fake = new(fakePorts)
	fake.tasks = 3
	serve(t, leader(t, opts), fake.ports())
	eventually(t, "slots of the second", func() bool { return slots(t, opts.Plans, train) == 3 })
}

// TestALeaderLeadsOnceAPlanOfItsOwnIsInForce refuses all plans but the one that is claimed, until nobody can have
// missed that it is.
func TestALeaderLeadsOnceAPlanOfItsOwnIsInForce(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	plans := opts.Plans
	var refused atomic.Int32
	var leads, open atomic.Bool
	opts.Leading = func(term uint64) { leads.Store(term > 0) }
	opts.Plans = &wrapped{plans, func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
		if plan.Tick > 0 && !open.Load() {
			refused.Add(1)
			return 0, errors.New("no space left on device")
		}
		return plans.Replace(ctx, plan, revision)
	}}
	publish(t, js, scheduled(train, 2))
	serve(t, leader(t, opts), new(fakePorts).ports())
	eventually(t, "plans that are refused", func() bool { return refused.Load() > 2 })
	if leads.Load() {
		t.Error("it says that it leads before a plan of its own is in force")
	}
	open.Store(true)
	eventually(t, "leading", leads.Load)
	if slots(t, plans, train) == 0 {
		t.Error("it leads, and no plan that it decided is in force")
	}
}

// TestALeaderWaitsForAStreamThatIsSlow holds the last message back until the leader has asked twice whether there is
// more.
func TestALeaderWaitsForAStreamThatIsSlow(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	const last = 2
	var asked atomic.Int32
	incoming := make(chan read, last)
	incoming <- read{sequence: 1}
	opts.Extent = func(context.Context) (uint64, uint64, error) {
		switch asked.Add(1) {
		case 1:
			return 0, 0, errors.New("no answer")
		case 2:
			incoming <- read{sequence: last}
		}
		return 1, last, nil
	}
	tm := newTerm(leader(t, opts), &planWriter{term: 1}, newRenewal(time.Minute, time.Now()), new(fakePorts).ports())
	tm.quiet, tm.target = time.Millisecond, last
	if err := tm.catchUp(t.Context(), incoming); err != nil || tm.sequence != last {
		t.Errorf("caught up at %d, %v; want at %d", tm.sequence, err, last)
	}
}

// TestAPriorityEasesAlsoWhenThePlanThatSaysSoIsLost refuses the first plan with the usual priority for a run that was
// late.
func TestAPriorityEasesAlsoWhenThePlanThatSaysSoIsLost(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	plans := opts.Plans
	var lost atomic.Bool
	opts.Plans = &wrapped{plans, func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
		eased := slices.ContainsFunc(plan.Windows, func(w predictor.Window) bool { return w.Priority == 3 })
		if eased && lost.CompareAndSwap(false, true) {
			return 0, errors.New("no answer in time")
		}
		return plans.Replace(ctx, plan, revision)
	}}
	fake := new(fakePorts)
	late := predictor.RunStarted{
		Run: "run-1", Pipeline: "train", App: "digits", Build: "b1",
		At: time.Now().Add(-time.Hour),
	}
	late.Goal.Deadline = time.Minute
	publish(t, js, late, scheduled(train, 2))
	serve(t, leader(t, opts), fake.ports())
	eventually(t, "the run overtakes", func() bool { return fake.priority("run-1") == 1 })
	publish(t, js, predictor.GoalChanged{Run: "run-1", At: time.Now()})
	eventually(t, "the run overtakes no longer", func() bool { return fake.priority("run-1") == 3 })
}

// TestAPriorityThatEasesBetweenTwoTermsIsTakenBack has the plan of a leader that is gone, and what happened since.
func TestAPriorityThatEasesBetweenTwoTermsIsTakenBack(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	before := planOf(1, 1, 1)
	before.Windows = []predictor.Window{{Run: "run-1", Stage: train, Tasks: 64, Priority: 1}}
	if _, err := opts.Plans.Replace(t.Context(), before, 0); err != nil {
		t.Fatal(err)
	}
	start := predictor.RunStarted{Run: "run-1", Pipeline: "train", App: "digits", Build: "b1", At: time.Now()}
	publish(t, js, start, scheduled(train, 2))
	fake := new(fakePorts)
	serve(t, leader(t, opts), fake.ports())
	eventually(t, "the run overtakes no longer", func() bool { return fake.priority("run-1") == 3 })
}

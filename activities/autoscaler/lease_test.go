package autoscaler

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func TestWhoMayTakeALease(t *testing.T) {
	t.Parallel()
	const lasts = 10 * time.Second
	for name, row := range map[string]struct {
		seen observation
		want bool
	}{
		"there is none":                        {observation{}, true},
		"it was given up":                      {observation{revision: 4}, true},
		"it is the candidate's own":            {observation{revision: 4, holder: "me"}, true},
		"another has just renewed it":          {observation{revision: 4, holder: "other"}, false},
		"another has been silent for a while":  {observation{revision: 4, holder: "other", unchanged: lasts - 1}, false},
		"another has been silent for too long": {observation{revision: 4, holder: "other", unchanged: lasts}, true},
		"it cannot be read": {
			observation{revision: 4, holder: unknownHolder, unchanged: lasts / 2},
			false,
		},
		"it could not be read for too long": {observation{revision: 4, holder: unknownHolder, unchanged: lasts}, true},
	} {
		if got := row.seen.free("me", lasts); got != row.want {
			t.Errorf("%s: free = %v", name, got)
		}
	}
}

// TestNoTwoLeadAtATime plays processes that are suspended at will, whose calls to NATS take any time: whoever acts
// within the rules of renewal.left acts alone.
func TestNoTwoLeadAtATime(t *testing.T) {
	t.Parallel()
	const lasts = 10 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		type process struct {
			seen     observation
			since    time.Duration
			leads    bool
			revision uint64
			renewed  time.Duration // when the last renewal that succeeded began
		}
		var now time.Duration
		var revision uint64
		holder := ""
		names := []string{"a", "b", "c"}
		all := map[string]*process{"a": {}, "b": {}, "c": {}}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(4*time.Second)).Draw(t, "pause"))
			name := rapid.SampledFrom(names).Draw(t, "process")
			p := all[name]
			if p.leads && p.renewed+lasts/2 <= now {
				p.leads = false
			}
			began := now
			now += time.Duration(rapid.Int64Range(0, int64(6*time.Second)).Draw(t, "call")) // until the server has it
			switch {
			case p.leads && p.revision == revision:
				revision++
				p.revision, p.renewed = revision, began
			case p.leads:
				p.leads = false
			default:
				if p.seen.revision != revision || p.seen.holder != holder {
					p.seen, p.since = observation{revision: revision, holder: holder}, now
				}
				p.seen.unchanged = now - p.since
				if p.seen.free(name, lasts) {
					revision++
					holder = name
					*p = process{leads: true, revision: revision, renewed: now}
				}
			}
			acting := 0
			for _, one := range all {
				if one.leads && one.renewed+lasts/2 > now {
					acting++
				}
			}
			if acting > 1 {
				t.Fatalf("%d lead at a time", acting)
			}
		}
	})
}

// TestALeaderThatHearsOfALaterTermTakesAnEvenLaterOne has it hear of one that NATS knows nothing of, as when its
// buckets were lost and what else leaders write was not.
func TestALeaderThatHearsOfALaterTermTakesAnEvenLaterOne(t *testing.T) {
	t.Parallel()
	opts := options(t, stream(t))
	var term atomic.Uint64
	opts.Leading = term.Store
	l := leader(t, opts)
	lead(t, l)
	eventually(t, "the first term", func() bool { return term.Load() == 1 })
	l.Deposed(wire.MaxTerm + 1) // there is none
	l.Deposed(41)
	l.Deposed(7)
	eventually(t, "a term after the one that it heard of", func() bool { return term.Load() == 42 })
}

func TestWhoLeadsIsKnownToTheOthers(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	var followed atomic.Pointer[string]
	first, second := opts, opts
	first.Server, second.Server = "one", "two"
	second.Following = func(server string) { followed.Store(&server) }
	leads, stands := leader(t, first), leader(t, second)
	stop := lead(t, leads)
	eventually(t, "the first leads", func() bool { return leads.Standing() == Standing{Own: true} })
	lead(t, stands)
	if err := stands.Health(); !errors.Is(err, errNoTerm) {
		t.Errorf("before it has seen anything: %v, want %v", err, errNoTerm)
	}
	eventually(t, "the second sees the first lead", func() bool {
		return stands.Standing() == Standing{Other: true, Server: "one"} && stands.Health() == nil
	})
	if told := followed.Load(); told == nil || *told != "one" {
		t.Errorf("told of %v, want one", told)
	}
	stop()
	eventually(t, "the second leads", func() bool { return stands.Standing() == Standing{Own: true} })
}

func TestALeaseThatNobodyCanTakeIsSaidAtTheStart(t *testing.T) {
	t.Parallel()
	js := stream(t)
	l := leader(t, options(t, js))
	if err := l.Prepare(t.Context()); err != nil {
		t.Errorf("where there is room: %v", err)
	}
	if _, err := js.KeyValue(t.Context(), wire.LeaseBucket); err != nil {
		t.Errorf("the bucket is not there: %v", err)
	}
	js.Conn().Close()
	if err := l.Prepare(t.Context()); err == nil || !strings.Contains(err.Error(), wire.LeaseBucket) {
		t.Errorf("without NATS: %v, want the bucket to be named", err)
	}
}

func TestOneLeadsAndTheNextWhenItGivesUp(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	var mu sync.Mutex
	leading := map[int]bool{}
	var most int
	var stops [3]func()
	for i := range stops {
		own := opts
		own.Leading = func(term uint64) {
			mu.Lock()
			defer mu.Unlock()
			leading[i] = term > 0
			count := 0
			for _, one := range leading {
				if one {
					count++
				}
			}
			most = max(most, count)
		}
		stops[i] = lead(t, leader(t, own))
	}
	for range stops {
		current := -1
		eventually(t, "somebody leads", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for i, leads := range leading {
				if leads {
					current = i
				}
			}
			return current >= 0
		})
		stops[current]()
		mu.Lock()
		delete(leading, current)
		mu.Unlock()
	}
	if most != 1 {
		t.Errorf("%d led at a time", most)
	}
}

func TestALeaderOutlivesWhatPeopleDoToItsLease(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(ctx context.Context, bucket jetstream.KeyValue) error{
		"it was deleted": func(ctx context.Context, bucket jetstream.KeyValue) error {
			return bucket.Delete(ctx, wire.LeaseKey)
		},
		"it was purged": func(ctx context.Context, bucket jetstream.KeyValue) error {
			return bucket.Purge(ctx, wire.LeaseKey)
		},
		"it is not JSON": func(ctx context.Context, bucket jetstream.KeyValue) error {
			_, err := bucket.PutString(ctx, wire.LeaseKey, "{]")
			return err
		},
		"it is of a newer build": func(ctx context.Context, bucket jetstream.KeyValue) error {
			_, err := bucket.PutString(ctx, wire.LeaseKey, `{"v":99,"holder":"?"}`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stream(t)
			own, err := openLeases(t.Context(), js, "me")
			if err != nil {
				t.Fatal(err)
			}
			if err := own.campaign(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
			if err := harm(t.Context(), own.bucket); err != nil {
				t.Fatal(err)
			}
			if err := own.renew(t.Context()); err != nil {
				t.Errorf("renew: %v", err)
			}
			now, err := own.look(t.Context())
			if err != nil || now.holder != "me" || now.revision != own.revision {
				t.Errorf("the lease is %+v, %v; want it held at revision %d", now, err, own.revision)
			}
		})
	}
}

func TestALeaseThatIsHeldIsTakenOnlyAfterItsWholeTime(t *testing.T) {
	t.Parallel()
	js := stream(t)
	silent, err := openLeases(t.Context(), js, "silent")
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.campaign(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	next, err := openLeases(t.Context(), js, "next")
	if err != nil {
		t.Fatal(err)
	}
	const lasts = 500 * time.Millisecond
	began := time.Now()
	if err := next.campaign(t.Context(), lasts); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < lasts {
		t.Errorf("the lease was taken after %v, before its %v", took, lasts)
	}
	if err := silent.renew(t.Context()); !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "next") {
		t.Errorf("the former holder's renewal: %v, want %v and who holds it", err, ErrLeaseLost)
	}
}

// TestAfterAKillTheNextProcessLeadsAtOnce: the leader and its servers die together, as the embedded ones do with the
// engine.
func TestAfterAKillTheNextProcessLeadsAtOnce(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	killed, err := openLeases(t.Context(), prepared(t, server), "killed")
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.campaign(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	server.Restart()
	next, err := openLeases(t.Context(), prepared(t, server), "next")
	if err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := next.campaign(limited, time.Hour); err != nil {
		t.Errorf("the next process did not get the lease: %v", err)
	}
}

// prepared returns JetStream with the loop's streams.
func prepared(t *testing.T, server *natstest.Server) jetstream.JetStream {
	t.Helper()
	js := server.Connect()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	return js
}

func TestALeaderLeadsAgainAfterNATSWasAway(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	opts := options(t, prepared(t, server))
	var terms, failures atomic.Int64
	opts.Leading = func(term uint64) {
		if term > 0 {
			terms.Add(1)
		}
	}
	opts.Failed = func() { failures.Add(1) }
	l := leader(t, opts)
	l.lasts = 2 * time.Second
	lead(t, l)
	eventually(t, "the first term", func() bool { return terms.Load() == 1 })
	server.Stop()
	eventually(t, "the lead is lost", func() bool { return failures.Load() > 0 })
	server.Restart()
	eventually(t, "the second term", func() bool { return terms.Load() == 2 })
}

func TestAFaultOfTheLeaderIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	js := stream(t)
	opts := options(t, js)
	var asked, failures atomic.Int64
	opts.Hosts = func(context.Context) ([]predictor.Host, error) {
		if asked.Add(1) == 1 {
			panic("a fault of ours")
		}
		return []predictor.Host{laptop}, nil
	}
	opts.Failed = func() { failures.Add(1) }
	lead(t, leader(t, opts))
	publish(t, js, scheduled(train, 2))
	eventually(t, "slots in spite of the fault", func() bool { return slots(t, opts.Plans, train) > 0 })
	if failures.Load() != 1 {
		t.Errorf("told of %d failures, want 1", failures.Load())
	}
}

func TestAPlanThatNobodyCanReadIsReplaced(t *testing.T) {
	t.Parallel()
	js := stream(t)
	bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
	if err != nil {
		t.Fatal(err)
	}
	opts := options(t, js)
	lead(t, leader(t, opts))
	publish(t, js, scheduled(train, 2))
	eventually(t, "slots", func() bool { return slots(t, opts.Plans, train) > 0 })
	if _, err := bucket.PutString(t.Context(), wire.PlanKey, "{]"); err != nil {
		t.Fatal(err)
	}
	publish(t, js, scheduled(score, 3))
	eventually(t, "a plan that can be read", func() bool {
		plan, _, err := opts.Plans.Current(t.Context())
		return err == nil && len(plan.Grants) > 0
	})
}

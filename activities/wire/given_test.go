package wire_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestAttackAHostChargesHostsThatAreInNoGangOfIts: what a Record says of the parts of its cost is within what the
// attempt was given with, where an earlier engine has proved what its gang costs and not who is in it.
func TestAttackAHostChargesHostsThatAreInNoGangOfIts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	stage := predictor.StageID{App: "app", Build: "b1", Name: "train"}
	of := func(parts ...quantity.Money) (shares []predictor.HostShare) {
		for _, part := range parts {
			shares = append(shares, predictor.HostShare{Host: "host-2", Cost: part})
		}
		return shares
	}
	for _, c := range []struct {
		name   string
		others quantity.Money // per hour
		shares []predictor.HostShare
		may    bool
	}{
		{"no others", 0, nil, true},
		{"others that cost nothing", 0, of(0), true},
		{"others that cost something", quantity.USD, of(quantity.USD/2, quantity.USD/2), true},
		{"others without a gang", 0, of(1), false},
		{"others that cost more than the attempt", quantity.USD, of(quantity.USD, 1), false},
		{"others that cost less than nothing", quantity.USD, of(-1), false},
		{"more others than a gang has", quantity.USD, of(make([]quantity.Money, gang.MostHosts)...), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			given := wire.Given{
				Run: "r", Stage: stage, Task: "train-0", Attempt: 1, At: now.Add(-time.Hour), Others: c.others,
			}
			record := predictor.Record{
				Run: "r", Stage: stage, Task: "train-0", Attempt: 1, At: now, Cost: quantity.USD, Members: c.shares,
			}
			if err := given.CheckRecord(record, quantity.USD, now); (err == nil) != c.may {
				t.Errorf("got %v, want that it may be told: %v", err, c.may)
			}
		})
	}
}

// TestAttackAHostNamesHostsOfAnotherGang: an attempt that was given with others names no more than those, at no more
// than each costs, nor for longer than it can have gone on.
func TestAttackAHostNamesHostsOfAnotherGang(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	stage := predictor.StageID{App: "app", Build: "b1", Name: "train"}
	given := wire.Given{
		Run: "r", Stage: stage, Task: "train-0", Attempt: 1, At: now.Add(-time.Hour + time.Minute),
		Members: []predictor.HostShare{{Host: "host-2", PerHour: 2 * quantity.USD}, {Host: "host-3", PerHour: 1}},
	}
	for _, c := range []struct {
		name  string
		share predictor.HostShare
		may   bool
	}{
		{"what it costs", predictor.HostShare{Host: "host-2", PerHour: 2 * quantity.USD}, true},
		{"less", predictor.HostShare{Host: "host-2", PerHour: 1, Held: time.Minute}, true},
		{"more", predictor.HostShare{Host: "host-3", PerHour: 2}, false},
		{"another host", predictor.HostShare{Host: "host-4"}, false},
		{"itself", predictor.HostShare{Host: "host-1"}, false},
		{"for longer than it can have gone on", predictor.HostShare{Host: "host-2", Held: 2 * time.Hour}, false},
		{"for less than nothing", predictor.HostShare{Host: "host-2", Held: -1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ended := c.share
			ended.Cost, ended.PerHour = c.share.PerHour, 0
			record := predictor.Record{
				Run: "r", Stage: stage, Task: "train-0", Attempt: 1, At: now, Cost: 3 * quantity.USD,
				Members: []predictor.HostShare{ended},
			}
			if err := given.CheckRecord(record, 3*quantity.USD, now); (err == nil) != c.may {
				t.Errorf("a Record: got %v, want that it may be told: %t", err, c.may)
			}
			if c.share.Held != 0 {
				return
			}
			_, text, err := wire.EncodeEvent(predictor.AttemptStarted{
				Run: "r", Stage: stage, Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "host-1", At: now,
				Members: []predictor.HostShare{c.share},
			})
			if err != nil {
				t.Fatal(err)
			}
			err = wire.CheckHostTold("host-1", wire.LoopSubject(wire.KindAttemptStarted), "", text,
				&wire.Shown{Now: now, Given: &given})
			if (err == nil) != c.may {
				t.Errorf("that it has started: got %v, want that it may be told: %t", err, c.may)
			}
		})
	}
}

// TestAttackAHostReservesWhatItsGangDoesNotCost: what a host tells of the other hosts of its gang when an attempt
// begins, by which its team's money is reserved and the bill goes on, is within what the attempt was given with.
func TestAttackAHostReservesWhatItsGangDoesNotCost(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	stage := predictor.StageID{App: "app", Build: "b1", Name: "train"}
	of := func(name string, perHour ...quantity.Money) (shares []predictor.HostShare) {
		for _, one := range perHour {
			shares = append(shares, predictor.HostShare{Host: name, PerHour: one})
		}
		return shares
	}
	for _, c := range []struct {
		name   string
		others quantity.Money // per hour
		shares []predictor.HostShare
		may    bool
	}{
		{"no others", 0, nil, true},
		{"others that cost nothing", 0, of("host-2", 0), true},
		{"others that cost something", 3, of("host-2", 1, 2), true},
		{"others without a gang", 0, of("host-2", 1), false},
		{"others that cost more than was given", 3, of("host-2", 1, 2, 1), false},
		{"one that costs as much as there is", 3, of("host-2", math.MaxInt64), false},
		{"some whose sum is less than nothing", 3, of("host-2", math.MaxInt64, math.MaxInt64), false},
		{"one that costs less than nothing", 3, of("host-2", -1), false},
		{"more others than a gang has", 0, of("host-2", make([]quantity.Money, gang.MostHosts)...), false},
		{"a name that is too long", 0, of(strings.Repeat("h", wire.MaxName+1), 0), false},
		{"a name that steers terminals", 0, of("host\x1b[2J", 0), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, text, err := wire.EncodeEvent(predictor.AttemptStarted{
				Run: "r", Stage: stage, Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "host-1", At: now,
				Members: c.shares,
			})
			if err != nil {
				t.Fatal(err)
			}
			shown := &wire.Shown{Now: now, Given: &wire.Given{
				Run: "r", Stage: stage, Task: "train-0", Attempt: 1, At: now.Add(-time.Hour), Others: c.others,
			}}
			err = wire.CheckHostTold("host-1", wire.LoopSubject(wire.KindAttemptStarted), "", text, shown)
			if (err == nil) != c.may {
				t.Errorf("got %v, want that it may be told: %v", err, c.may)
			}
		})
	}
}

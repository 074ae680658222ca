package provision_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// oneKind has hosts that serve a task a minute for a cent, functions for so many cents a task, a minute of start and
// ten of hold.
func oneKind(cents int64) provision.Terms {
	return provision.Terms{
		Hosts:    []provision.Host{{Name: "core", Tasks: 1, Step: quantity.USD / 100}},
		Function: quantity.USD / 100 * quantity.Money(cents), Delay: 1, Hold: 10,
	}
}

// steady is the same load in each of 30 minutes.
func steady(quantiles ...float64) provision.Forecast {
	f := provision.Forecast{Levels: []float64{0.1, 0.5, 0.9}}
	for range 30 {
		f.Steps = append(f.Steps, quantiles)
	}
	return f
}

// TestAdviceByHand: four tasks in each minute for sure, functions at three cents. Four hosts cost 4 cents a minute,
// $57.6 a day; with two, functions take the other two for 6 cents more.
func TestAdviceByHand(t *testing.T) {
	t.Parallel()
	advice, err := provision.Advise(oneKind(3), 2, time.Minute, steady(4, 4, 4))
	if err != nil {
		t.Fatal(err)
	}
	if advice.Held != 4 || math.Abs(advice.Day.Mean-57.6) > 1e-6 || math.Abs(advice.DayNow.Mean-115.2) > 1e-6 {
		t.Errorf("got %+v, want 4 held for $57.6 against $115.2", advice)
	}
	if math.Abs(advice.Busy-1./3) > 1e-9 || advice.Bound < 3 {
		t.Errorf("busy %v, bound %v; want a third, and at least 3", advice.Busy, advice.Bound)
	}
	if len(advice.Others) != 3 || advice.Others[0].Held != 0 || math.Abs(advice.Others[0].Day.Mean-172.8) > 1e-6 {
		t.Errorf("others: %+v, want functions alone for $172.8, one less, one more", advice.Others)
	}
	advice, err = provision.Advise(oneKind(1), 2, time.Minute, steady(4, 4, 4))
	if err != nil || advice.Held != 0 || advice.Day.Mean >= advice.DayNow.Mean+1e-9 && advice.Day.Mean > 57.6+1e-9 {
		t.Errorf("functions at the price of hosts: %+v, %v; want none held", advice, err)
	}
}

// TestAdviceCostsAboutTheLeast of all numbers, which are tried one by one; a launch is to pay for its start, too, so
// one may be left out that just pays.
func TestAdviceCostsAboutTheLeast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		terms := oneKind(rapid.Int64Range(0, 20).Draw(t, "cents"))
		low := rapid.Float64Range(0, 20).Draw(t, "low")
		middle := low + rapid.Float64Range(0, 10).Draw(t, "to the middle")
		high := middle + rapid.Float64Range(0, 20).Draw(t, "to the high")
		f := steady(low, middle, high)
		advice, err := provision.Advise(terms, 0, time.Minute, f)
		if err != nil {
			t.Fatal(err)
		}
		least := math.Inf(1)
		for held := range 60 {
			other, err := provision.Advise(terms, held, time.Minute, f)
			if err != nil {
				t.Fatal(err)
			}
			least = min(least, other.DayNow.Mean)
		}
		// The start is a step of eleven.
		if advice.Day.Mean > least*1.1+0.01 {
			t.Fatalf("%d held cost $%v a day, the least is $%v", advice.Held, advice.Day.Mean, least)
		}
		if advice.Day.Low > advice.Day.Mean+1e-6 || advice.Day.Mean > advice.Day.High+1e-6 {
			t.Fatalf("the mean is not between its bounds: %+v", advice.Day)
		}
	})
}

func TestAdviceThatCannotBeGivenIsRefused(t *testing.T) {
	t.Parallel()
	two := oneKind(3)
	two.Hosts = append(two.Hosts, two.Hosts[0])
	for name, ask := range map[string]func() (provision.Advice, error){
		"two types": func() (provision.Advice, error) { return provision.Advise(two, 0, time.Minute, steady(1, 2, 3)) },
		"less than none": func() (provision.Advice, error) {
			return provision.Advise(oneKind(3), -1, time.Minute, steady(1, 2, 3))
		},
		"no time": func() (provision.Advice, error) { return provision.Advise(oneKind(3), 0, 0, steady(1, 2, 3)) },
		"no forecast": func() (provision.Advice, error) {
			return provision.Advise(oneKind(3), 0, time.Minute, provision.Forecast{})
		},
	} {
		if _, err := ask(); !errors.Is(err, provision.ErrTerms) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

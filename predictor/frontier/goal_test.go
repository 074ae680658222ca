package frontier_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// doubted is a job whose options differ in time, cost, spread and doubt.
func doubted(seed uint64) frontier.Job {
	r := rand.New(rand.NewPCG(seed, 5))
	var job frontier.Job
	for range 3 {
		var options []frontier.Option
		for i := range 5 {
			options = append(options, frontier.Option{
				Seconds: 40 / float64(i+1) * (1 + r.Float64()/9), Cost: quantity.Money(1e6 * (5 + float64(i*i) + r.Float64())),
				Spread: 0.1 * r.Float64(), Doubt: 0.2 * r.Float64(),
			})
		}
		job.Stages = append(job.Stages, options)
	}
	return job
}

func TestDoubtsOfAllStagesErrTogether(t *testing.T) {
	t.Parallel()
	const draws = 20000
	for seed := range uint64(5) {
		job := doubted(seed)
		f, err := frontier.New(job)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, 6))
		p := f.At(f.Len() / 2)
		for _, factor := range []float64{0.9, 1, 1.1, 1.3} {
			limit, budget := p.Seconds*factor, p.Cost.Times(factor)
			inTime, inBudget := 0.0, 0.0
			for range draws {
				common, seconds, cost := r.NormFloat64(), 0.0, 0.0
				for stage, i := range p.Options {
					o := job.Stages[stage][i]
					by := math.Exp(o.Doubt*common + o.Spread*r.NormFloat64())
					seconds += o.Seconds * by
					cost += float64(o.Cost) * by
				}
				if seconds <= limit {
					inTime += 1.0 / draws
				}
				if cost <= float64(budget) {
					inBudget += 1.0 / draws
				}
			}
			if told := f.Within(p, limit); math.Abs(told-inTime) > 0.02 {
				t.Errorf("seed %d: %g times the median is met with %.3f, drawn %.3f", seed, factor, told, inTime)
			}
			if told := f.Affords(p, budget); math.Abs(told-inBudget) > 0.02 {
				t.Errorf("seed %d: %g times the cost is enough with %.3f, drawn %.3f", seed, factor, told, inBudget)
			}
		}
	}
}

func TestAPlanMeetsItsGoalAsLikelyAsAskedAtTheLeastCost(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		f, err := frontier.New(doubted(seed))
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, 7))
		goal := frontier.Goal{
			Seconds: 20 + 100*r.Float64(), Cost: quantity.Money(1e6 * (10 + 50*r.Float64())), Confidence: 0.5 + r.Float64()/2,
		}
		switch seed % 4 {
		case 1:
			goal.Cost = frontier.Unlimited
		case 2:
			goal.Seconds = math.Inf(1)
		}
		got, found := f.Meet(goal)
		if !found {
			t.Fatalf("seed %d: no plan", seed)
		}
		// By definition, over all points.
		meets, cheapest, fastest, likeliest := false, frontier.Unlimited, math.Inf(1), 0.0
		for i := range f.Len() {
			p := f.At(i)
			chance := min(f.Within(p, goal.Seconds), f.Affords(p, goal.Cost))
			likeliest = max(likeliest, chance)
			if chance >= goal.Confidence {
				meets, cheapest, fastest = true, min(cheapest, p.Cost), min(fastest, p.Seconds)
			}
		}
		switch {
		case got.Meets != meets:
			t.Errorf("seed %d: %+v for %+v, meets is %v", seed, got, goal, meets)
		case !meets && min(got.InTime, got.InBudget) != likeliest:
			t.Errorf("seed %d: %+v for %+v, the likeliest has %g", seed, got, goal, likeliest)
		case meets && math.IsInf(goal.Seconds, 1) && got.Seconds != fastest:
			t.Errorf("seed %d: %+v for %+v, the fastest takes %g", seed, got, goal, fastest)
		case meets && !math.IsInf(goal.Seconds, 1) && got.Cost != cheapest:
			t.Errorf("seed %d: %+v for %+v, the cheapest costs %v", seed, got, goal, cheapest)
		}
	}
	f, err := frontier.New(doubted(1))
	if err != nil {
		t.Fatal(err)
	}
	last := f.At(f.Len() - 1)
	for _, gone := range []frontier.Goal{
		{Confidence: 0.9},
		{Seconds: math.Inf(1), Cost: -1, Confidence: 0.9},
		{Seconds: -1, Cost: frontier.Unlimited, Confidence: 0.9},
	} {
		if p, _ := f.Meet(gone); p.Meets || p.Cost != last.Cost {
			t.Errorf("%+v: %+v, want the cheapest: nothing meets it", gone, p)
		}
	}
	if p, found := (frontier.Frontier{}).Meet(frontier.Goal{}); found {
		t.Errorf("the zero frontier has the plan %+v", p)
	}
}

func TestAChangeHidesBehindTheRunningUnit(t *testing.T) {
	t.Parallel()
	slow := frontier.Choice{Seconds: 10, Start: 4, Workers: 1, Price: 1, Spread: 0.3, Doubt: 0.1}
	fast := frontier.Choice{Seconds: 2, Start: 4, Workers: 6, Price: 1, Capacity: 1}
	late := frontier.Choice{Seconds: 1, Start: 25, Workers: 12, Price: 1, Request: 1}
	choices := []frontier.Choice{slow, fast, late}
	spread := math.Hypot(0.4, 0.3)
	for _, row := range []struct {
		name string
		rest frontier.Rest
		want []frontier.Option
	}{
		{
			"what has not begun starts",
			frontier.Rest{Units: 5, Spread: 0.4, Running: -1, Choices: choices},
			[]frontier.Option{
				{Seconds: 54, Cost: 54, Spread: spread, Doubt: 0.1},
				{Seconds: 14, Cost: 6 * 14, Spread: 0.4, Capacity: 1},
				{Seconds: 30, Cost: 12*30 + 12, Spread: 0.4},
			},
		},
		{
			"the running one goes on; another starts meanwhile, or is waited for",
			frontier.Rest{Units: 5, Spread: 0.4, Choices: choices},
			[]frontier.Option{
				{Seconds: 50, Cost: 50, Spread: spread, Doubt: 0.1},
				{Seconds: 10 + 4*2, Cost: 10 + 6*(4+4*2), Spread: 0.4, Capacity: 1},
				{Seconds: 25 + 4, Cost: 10 + 12*(25+4) + 12, Spread: 0.4},
			},
		},
		{
			"the last unit ends as it began",
			frontier.Rest{Units: 1, Running: 1, Choices: choices},
			[]frontier.Option{
				{Seconds: 2, Cost: 12, Capacity: 1}, {Seconds: 2, Cost: 12, Capacity: 1}, {Seconds: 2, Cost: 12, Capacity: 1},
			},
		},
	} {
		for i, got := range row.rest.Options() {
			if got != row.want[i] {
				t.Errorf("%s: option %d is %+v, want %+v", row.name, i, got, row.want[i])
			}
		}
	}
}

func TestWhatRunsGoesOnUnlessAChangeBringsEnough(t *testing.T) {
	t.Parallel()
	other := frontier.Option{Seconds: 50, Cost: 100}
	for _, row := range []struct {
		name    string
		running frontier.Option
		goal    frontier.Goal
		want    int
	}{
		{
			"another is hardly cheaper",
			frontier.Option{Seconds: 60, Cost: 103},
			frontier.Goal{Seconds: 100, Cost: frontier.Unlimited, Confidence: 0.9},
			0,
		},
		{
			"another is much cheaper",
			frontier.Option{Seconds: 40, Cost: 110},
			frontier.Goal{Seconds: 100, Cost: frontier.Unlimited, Confidence: 0.9},
			1,
		},
		{
			"what runs is late",
			frontier.Option{Seconds: 60, Cost: 99},
			frontier.Goal{Seconds: 55, Cost: frontier.Unlimited, Confidence: 0.9},
			1,
		},
		{
			"what runs is likely late",
			frontier.Option{Seconds: 53, Cost: 99, Spread: 0.1},
			frontier.Goal{Seconds: 55, Cost: frontier.Unlimited, Confidence: 0.9},
			1,
		},
		{
			"both are late: the likelier one",
			frontier.Option{Seconds: 60, Cost: 99, Spread: 0.5},
			frontier.Goal{Seconds: 45, Cost: frontier.Unlimited, Confidence: 0.9},
			0,
		},
		{
			"another is hardly faster",
			frontier.Option{Seconds: 52, Cost: 90},
			frontier.Goal{Seconds: math.Inf(1), Cost: 200, Confidence: 0.9},
			0,
		},
		{
			"another is much faster",
			frontier.Option{Seconds: 80, Cost: 90},
			frontier.Goal{Seconds: math.Inf(1), Cost: 200, Confidence: 0.9},
			1,
		},
		{
			"there is no money for another",
			frontier.Option{Seconds: 80, Cost: 90},
			frontier.Goal{Seconds: math.Inf(1), Cost: 95, Confidence: 0.9},
			0,
		},
	} {
		job := frontier.Job{Stages: [][]frontier.Option{{row.running, other}, {{Seconds: 1, Cost: 1}}}}
		plan, err := frontier.Replan(job, row.goal, frontier.Stays{Option: 0, Gain: 0.05})
		if err != nil || plan.Options[0] != row.want || len(plan.Options) != 2 {
			t.Errorf("%s: %+v, %v, want option %d", row.name, plan, err, row.want)
		}
	}
	nothing := frontier.Job{Stages: [][]frontier.Option{{}}}
	if _, err := frontier.Replan(nothing, frontier.Goal{}, frontier.Stays{Option: -1}); err == nil {
		t.Error("a job that cannot be run is planned")
	}
	if plan, err := frontier.Replan(frontier.Job{}, frontier.Goal{}, frontier.Stays{}); err != nil || !plan.Meets {
		t.Errorf("a job that is done: %+v, %v", plan, err)
	}
}

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor/usage"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/baseline"
	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/replay"
)

func sizing() verb {
	return verb{
		name:    "sizing",
		summary: "limits of memory and CPU: unused room against ticks over the limit",
		explain: `
Each recorded series is replayed tick by tick; the limit for a tick comes from earlier ticks only.

  mean_slack        (limit - use) / limit, the mean over all ticks within the limit
  over_limit        ticks with more use than the limit, of all ticks
  resizes_per_hour  changes of the limit by more than 1%, per hour of one series

Sets (a folder that is absent is skipped, with a note):

  alibaba_genai_2026  pod_memory_util*.csv[.gz]: memory of containers with at least 300 ticks; first limit 1
  planetlab_cpu       *.csv[.gz]: CPU of virtual machines, every 5 minutes for a day; first limit 100
  cluster_capacity    *.csv[.gz]: CPU and memory of resource pools, every minute for a month; first limit 1.5 times
                      the first use

The first 30 ticks of a series are not counted. half_a and half_b are the series by a hash of their names; the case
"censored" hides a use beyond the limit from every policy, as when the process is killed; "over_cost" is the price of a
tick over where it is not the default. The policy "hindsight" knows the future: it is the best constant. "vpa" is the
recommender of the Kubernetes Vertical Pod Autoscaler.`,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			curve := flags.Bool("curve", false, "print the trade-off of slack against ticks over: the figures at several "+
				"prices of a tick over the limit")
			return func(ctx context.Context, with common) error { return evaluateSizing(ctx, with, *curve) }
		},
	}
}

// recorded is one series and how it is replayed.
type recorded struct {
	series.Series
	memory bool    // or CPU
	first  float64 // the first limit
}

// recordedSet is a folder of files in one format.
type recordedSet struct {
	name, prefix string
	format       series.Format
	protocol     replay.Protocol
	// prepare chooses the resource and first limit of a series.
	prepare func(series.Series) recorded
	// cases are the parts of the set that are scored.
	cases []sizingCase
}

type sizingCase struct {
	name     string
	includes func(recorded) bool
	variant
}

// variant is how the series of a case are replayed.
type variant struct {
	censored bool
	overCost float64 // the selector's price of a tick over; 0 is its default for the resource
}

// uncounted is how many first ticks only teach the policies.
const uncounted = 30

func recordedSets() []recordedSet {
	everything := func(recorded) bool { return true }
	halves := []sizingCase{
		{name: "all", includes: everything},
		{name: "half_a", includes: func(r recorded) bool { return !secondHalf(r.Name) }},
		{name: "half_b", includes: func(r recorded) bool { return secondHalf(r.Name) }},
	}
	return []recordedSet{
		{
			name: "alibaba_genai_2026", prefix: "pod_memory_util", format: series.Containers,
			protocol: replay.Protocol{LeastPoints: 300, Uncounted: uncounted},
			prepare:  func(s series.Series) recorded { return recorded{Series: s, memory: true, first: 1} },
			cases:    append(halves[:3:3], sizingCase{name: "censored", includes: everything, variant: variant{censored: true}}),
		},
		{
			name: "planetlab_cpu", format: series.Machines(5 * time.Minute),
			protocol: replay.Protocol{Uncounted: uncounted},
			prepare:  func(s series.Series) recorded { return recorded{Series: s, first: 100} },
			cases:    halves,
		},
		{
			name: "cluster_capacity", format: series.Pools,
			protocol: replay.Protocol{Uncounted: uncounted},
			prepare: func(s series.Series) recorded {
				return recorded{Series: s, memory: s.Name == "mem", first: firstOfPool(s)}
			},
			cases: []sizingCase{
				{name: "cpu", includes: func(r recorded) bool { return !r.memory }},
				{name: "mem", includes: func(r recorded) bool { return r.memory }},
				{name: "mem over_cost=300", includes: func(r recorded) bool { return r.memory }, variant: variant{overCost: 300}},
			},
		},
	}
}

// firstOfPool is 1.5 times the first use that is not zero: pools declare no limit.
func firstOfPool(s series.Series) float64 {
	for _, point := range s.Points {
		if point.Value > 0 {
			return 1.5 * point.Value
		}
	}
	return 1
}

// secondHalf splits series at random, but always in the same way.
func secondHalf(name string) bool {
	return sha256.Sum256([]byte(name))[0]&1 == 1
}

// policy makes one for a series.
type policy func(recorded) replay.Policy

func evaluateSizing(ctx context.Context, with common, curve bool) error {
	found := false
	for _, set := range recordedSets() {
		all, err := set.read(ctx, with.data)
		if errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(with.notes, "spillway-eval sizing: %s is absent from %s: skipped\n", set.name, with.data)
			continue
		}
		if err != nil {
			return err
		}
		found = true
		measure := set.figures
		if curve {
			measure = set.curve
		}
		if err := measure(ctx, with.report, all); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s holds none of the sets: name the folder that contains alibaba_genai_2026, planetlab_cpu or "+
			"cluster_capacity", with.data)
	}
	return nil
}

func (s recordedSet) read(ctx context.Context, data string) ([]recorded, error) {
	paths, err := series.Files(filepath.Join(data, s.name), s.prefix)
	if err != nil {
		return nil, err
	}
	var all []recorded
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		read, err := series.Open(path, s.format)
		if err != nil {
			return nil, err
		}
		for _, one := range read {
			all = append(all, s.prepare(one))
		}
	}
	return all, nil
}

// figures compares the selector at its defaults with the baselines.
func (s recordedSet) figures(ctx context.Context, into *report, all []recorded) error {
	variants := map[variant]map[string][]replay.Score{}
	for _, part := range s.cases {
		scores, done := variants[part.variant]
		if !done {
			scores = map[string][]replay.Score{}
			policies := baselines()
			policies[ours] = selector(part.overCost)
			for name, newPolicy := range policies {
				var err error
				if scores[name], err = s.replay(ctx, all, part.censored, newPolicy); err != nil {
					return err
				}
			}
			variants[part.variant] = scores
		}
		into.add(s.row(part.name, part.sums(all, scores))...)
	}
	return nil
}

// ours is the selector's name among the policies.
const ours = "spillway"

// curve moves the price of a tick over; the recommender of Kubernetes, which has no such knob, stays beside it.
func (s recordedSet) curve(ctx context.Context, into *report, all []recorded) error {
	kubernetes, err := s.replay(ctx, all, false, baselines()["vpa"])
	if err != nil {
		return err
	}
	for _, price := range []float64{1, 2, 5, 10, 20, 30, 45, 70, 100, 200, 250, 300, 400, 600, 1000} {
		scores, err := s.replay(ctx, all, false, selector(price))
		if err != nil {
			return err
		}
		for _, part := range s.cases {
			if part.variant == (variant{}) {
				sums := part.sums(all, map[string][]replay.Score{ours: scores, "vpa": kubernetes})
				into.add(s.row(fmt.Sprintf("%s over_cost=%g", part.name, price), sums)...)
			}
		}
	}
	return nil
}

// sums adds up the scores of the series that the case includes, in their order, so that rounding is always the same.
func (c sizingCase) sums(all []recorded, scores map[string][]replay.Score) map[string]replay.Score {
	sums := map[string]replay.Score{}
	for name, of := range scores {
		var sum replay.Score
		for i, score := range of {
			if c.includes(all[i]) {
				sum = sum.Plus(score)
			}
		}
		sums[name] = sum
	}
	return sums
}

func (s recordedSet) row(name string, sums map[string]replay.Score) []figure {
	var figures []figure
	for _, metric := range []struct {
		name, unit string
		of         func(replay.Score) float64
	}{
		{"mean_slack", "ratio", replay.Score.MeanSlack},
		{"over_limit", "ratio", replay.Score.OverLimit},
		{"resizes_per_hour", "per_hour", replay.Score.ResizesPerHour},
	} {
		f := figure{
			Eval: "sizing", Set: s.name, Case: name, Metric: metric.name, Unit: metric.unit,
			Ours: metric.of(sums[ours]), Baselines: map[string]float64{}, N: sums[ours].Ticks,
		}
		for name, sum := range sums {
			if name != ours {
				f.Baselines[name] = metric.of(sum)
			}
		}
		figures = append(figures, f)
	}
	return figures
}

// replay scores each series, several at a time.
func (s recordedSet) replay(
	ctx context.Context, all []recorded, censored bool, newPolicy policy,
) ([]replay.Score, error) {
	protocol := s.protocol
	protocol.Censored = censored
	return each(ctx, len(all), func(_ context.Context, i int) (replay.Score, error) {
		return protocol.Run(all[i].Series, newPolicy(all[i])), nil
	})
}

// selector is the policy under test. A price of 0 means the default for the resource.
func selector(price float64) policy {
	return func(of recorded) replay.Policy {
		options := usage.SelectorOptions{First: of.first, OverCost: price}
		if price == 0 && !of.memory {
			options.OverCost = usage.CPUOverCost
		}
		made, err := usage.NewSelector(options)
		if err != nil { // the readers let no such number through
			panic(fmt.Sprintf("first limit %v of %s: %v", of.first, of.Name, err))
		}
		return selected{made}
	}
}

type selected struct{ *usage.Selector }

func (s selected) Limit() float64 { return s.Selector.Limit().Value }

func (s selected) Observe(use series.Point, over bool) {
	censored := over && use.Value <= s.Limit() // a use that is known to be beyond the limit is not censored
	s.Selector.Observe(usage.Observation{At: use.At, Value: use.Value, Exceeded: censored})
}

// baselines are the references; every one holds the first limit as long as the selector does.
func baselines() map[string]policy {
	percentile := func(part float64, halfLife time.Duration, margin, raise float64) policy {
		return func(of recorded) replay.Policy {
			return baseline.NewPercentile(part, halfLife, margin, raise, of.first, uncounted)
		}
	}
	maximum := func(span time.Duration, margin float64) policy {
		return func(of recorded) replay.Policy { return baseline.NewMaximum(span, margin, of.first, uncounted) }
	}
	return map[string]policy{
		"static":        func(of recorded) replay.Policy { return baseline.Static(of.first) },
		"hindsight":     func(of recorded) replay.Policy { return baseline.Hindsight(of.Series) },
		"p90_24h_15pct": percentile(0.90, 24*time.Hour, 0.15, 1.2),
		"p98_48h_10pct": percentile(0.98, 48*time.Hour, 0.10, 0),
		"max_6h_10pct":  maximum(6*time.Hour, 0.10),
		"max_12h_15pct": maximum(12*time.Hour, 0.15),
		"vpa": func(of recorded) replay.Policy {
			largest := max(of.first, baseline.Hindsight(of.Series).Limit())
			if of.memory {
				return baseline.NewMemoryRecommender(of.first, largest)
			}
			return baseline.NewCPURecommender(of.first, largest)
		},
	}
}

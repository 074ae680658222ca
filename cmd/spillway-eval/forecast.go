package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/arrivals"
)

func forecasts() verb {
	return verb{
		name:    "forecast",
		summary: "arrivals to come: quantiles against what came",
		explain: `
Each trace is told bucket by bucket; after each, quantiles are asked for the count of one bucket some time ahead.

  pinball             the mean pinball loss over the quantiles .1, .5 and .9, arrivals
  coverage_80         counts within the interval from .1 to .9, its ends included
  pinball_ratio       the pinball loss over the better of last_value and seasonal_day (of last_value alone where a trace
                      is shorter than a day)
  pinball_ratio_mean  the same over the better of ewma_0.1 and profile_7d

Others, each with the empirical quantiles of its residuals in the last 1,440 buckets:

  last_value    the latest count
  seasonal_day  the count a day before, or as many days before as it takes to find one
  ewma_0.1      the exponential mean, the latest count with the weight 0.1
  profile_7d    the mean of the counts at the same time of the last 7 days

Sets (a folder that is absent is skipped, with a note):

  twitter_rps        rps.txt[.gz]: tweets a second for 15 days. Minutes, ten ahead; runs of at least 5 minutes of zero
                     are what the archive lacks
  nasa_rps           rps.txt[.gz]: requests a second for 40 days. Minutes, ten ahead; the same for runs of 60 minutes
  azure_vm_arrivals  *.train.txt[.gz], *.dev.txt[.gz], *.test.txt[.gz]: virtual machines, and the batches that tenants
                     asked for. Buckets of 5 minutes, ten minutes ahead
  azure_llm_2023     *.csv[.gz]: requests to a language model for an hour. Buckets of 10 s, a minute ahead

What is missing, and a bucket on either side, is told to nobody and not scored. The case "from day 7" scores what comes
after seven days, "first day" what comes before one is over, after 30 buckets; an hour is scored from its tenth minute
on. Only buckets are scored of which everybody in the table says something.`,
		define: func(*flag.FlagSet) func(context.Context, common) error { return evaluateArrivals },
	}
}

// arrivalSet is a folder of traces.
type arrivalSet struct {
	name string
	read func(folder string) ([]arrivals.Trace, error)
	// ahead is how many buckets ahead is forecast.
	ahead int
	cases []arrivalCase
}

// arrivalCase is the part of a trace that is scored.
type arrivalCase struct {
	name string
	// from and to are when it begins and ends after the start of the trace; to of 0 is its end.
	from, to time.Duration
	// days says that the baselines of a day are in it.
	days bool
}

const recordedDay = 24 * time.Hour

func arrivalSets() []arrivalSet {
	days := []arrivalCase{
		{name: "from day 7", from: 7 * recordedDay, days: true},
		{name: "first day", from: 30 * time.Minute, to: recordedDay},
	}
	return []arrivalSet{
		{name: "twitter_rps", read: perMinute(5), ahead: 10, cases: days},
		{name: "nasa_rps", read: perMinute(60), ahead: 10, cases: days},
		{name: "azure_vm_arrivals", read: machineTraces, ahead: 2, cases: []arrivalCase{
			days[0], {name: "first day", from: 30 * 5 * time.Minute, to: recordedDay},
		}},
		{name: "azure_llm_2023", read: requestTraces, ahead: 6, cases: []arrivalCase{
			{name: "from minute 10", from: 10 * time.Minute},
		}},
	}
}

func evaluateArrivals(ctx context.Context, with common) error {
	found := false
	for _, set := range arrivalSets() {
		traces, err := set.read(filepath.Join(with.data, set.name))
		if errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(with.notes, "%s is skipped: there is no such folder in %s\n", set.name, with.data)
			continue
		}
		if err != nil {
			return err
		}
		found = true
		for _, trace := range traces {
			for _, part := range set.cases {
				if err := evaluateTrace(ctx, with, set, trace, part); err != nil {
					return err
				}
			}
		}
	}
	if !found {
		return fmt.Errorf("%s holds none of the sets: name the folder that contains twitter_rps", with.data)
	}
	return nil
}

// evaluateTrace replays one part of a trace and adds its table.
func evaluateTrace(ctx context.Context, with common, set arrivalSet, trace arrivals.Trace, part arrivalCase) error {
	name := strings.TrimSpace(trace.Name + " " + part.name)
	our, err := arrivals.NewOurs(trace.Width, set.ahead)
	if err != nil {
		return err
	}
	all := map[string]arrivals.Forecaster{ours: our}
	for baseline, point := range arrivalBaselines(trace.Width, part.days) {
		all[baseline] = arrivals.NewSpread(point, set.ahead)
	}
	if part.to > 0 {
		trace.Counts = trace.Counts[:min(len(trace.Counts), int(part.to/trace.Width))]
	}
	scores, err := arrivals.Replay(ctx, trace, set.ahead, int(part.from/trace.Width), all)
	if err != nil {
		return fmt.Errorf("replay %s of %s: %w", name, set.name, err)
	}
	if len(scores) == 0 {
		_, _ = fmt.Fprintf(with.notes, "%s of %s is skipped: the trace is too short\n", name, set.name)
		return nil
	}
	with.report.add(arrivalFigures(set.name, name, scores)...)
	return nil
}

func arrivalBaselines(width time.Duration, days bool) map[string]arrivals.Point {
	all := map[string]arrivals.Point{"last_value": arrivals.LastValue(), "ewma_0.1": arrivals.EWMA(0.1)}
	if days {
		perDay := int(recordedDay / width)
		all["seasonal_day"], all["profile_7d"] = arrivals.SeasonalNaive(perDay), arrivals.Profile(perDay, 7)
	}
	return all
}

// arrivalFigures are the columns of a table.
func arrivalFigures(set, name string, scores map[string]arrivals.Score) []figure {
	better := func(names ...string) float64 {
		least := math.Inf(1)
		for _, name := range names {
			if score, scored := scores[name]; scored {
				least = math.Min(least, score.Pinball)
			}
		}
		return least
	}
	naive, mean := better("last_value", "seasonal_day"), better("ewma_0.1", "profile_7d")
	var figures []figure
	for _, metric := range []struct {
		name, unit string
		of         func(arrivals.Score) float64
	}{
		{"pinball", "arrivals", func(s arrivals.Score) float64 { return s.Pinball }},
		{"coverage_80", "ratio", func(s arrivals.Score) float64 { return s.Covered }},
		{"pinball_ratio", "ratio", func(s arrivals.Score) float64 { return s.Pinball / naive }},
		{"pinball_ratio_mean", "ratio", func(s arrivals.Score) float64 { return s.Pinball / mean }},
	} {
		if math.IsInf(metric.of(scores[ours]), 0) || math.IsNaN(metric.of(scores[ours])) {
			continue // relative to a baseline that was always right
		}
		one := figure{
			Eval: "forecast", Set: set, Case: name, Metric: metric.name, Unit: metric.unit, Ours: metric.of(scores[ours]),
			Baselines: map[string]float64{}, N: scores[ours].Buckets,
		}
		for baseline, score := range scores {
			if baseline != ours {
				one.Baselines[baseline] = metric.of(score)
			}
		}
		figures = append(figures, one)
	}
	return figures
}

// perMinute reads the seconds of a folder as minutes; runs of least minutes of zero are missing.
func perMinute(least int) func(string) ([]arrivals.Trace, error) {
	return func(folder string) ([]arrivals.Trace, error) {
		paths, err := series.FilesOf(folder, "rps", ".txt")
		if err != nil {
			return nil, err
		}
		var traces []arrivals.Trace
		for _, path := range paths {
			counts, err := series.Open(path, series.PerSecond)
			if err != nil {
				return nil, err
			}
			traces = append(traces, arrivals.Trace{Width: time.Second, Counts: counts}.Gathered(60).Masked(least))
		}
		return traces, nil
	}
}

// requestTraces reads the times of requests as buckets of ten seconds; the last, which may be cut off, is left out.
func requestTraces(folder string) ([]arrivals.Trace, error) {
	const width = 10 * time.Second
	paths, err := series.Files(folder, "")
	if err != nil {
		return nil, err
	}
	var traces []arrivals.Trace
	for _, path := range paths {
		requests, err := series.Open(path, series.Requests)
		if err != nil {
			return nil, err
		}
		trace := arrivals.Trace{
			Name:  strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), ".csv"),
			Width: width, Counts: make([]float64, requests[len(requests)-1].Sub(requests[0])/width),
		}
		for _, at := range requests {
			if bucket := int(at.Sub(requests[0]) / width); bucket < len(trace.Counts) {
				trace.Counts[bucket]++
			}
		}
		traces = append(traces, trace)
	}
	return traces, nil
}

// machineTraces reads the parts of the trace of virtual machines, which follow each other, as one: of machines, and of
// batches. Buckets between that no part tells are missing.
func machineTraces(folder string) ([]arrivals.Trace, error) {
	const width = 5 * time.Minute
	machines, batches := arrivals.Trace{Name: "machines", Width: width}, arrivals.Trace{Name: "batches", Width: width}
	read := 0
	for _, part := range []string{".train.txt", ".dev.txt", ".test.txt"} {
		paths, err := series.FilesOf(folder, "", part)
		if errors.Is(err, series.ErrNoFiles) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			bins, err := series.Open(path, series.Bins)
			if err != nil {
				return nil, err
			}
			read++
			for _, bin := range bins {
				for time.Duration(len(machines.Counts))*width < bin.Start {
					machines.Counts = append(machines.Counts, math.NaN())
					batches.Counts = append(batches.Counts, math.NaN())
				}
				machines.Counts = append(machines.Counts, float64(bin.Machines))
				batches.Counts = append(batches.Counts, float64(bin.Batches))
			}
		}
	}
	if read == 0 {
		return nil, fmt.Errorf("%w: %s holds no *.train.txt, *.dev.txt or *.test.txt", series.ErrNoFiles, folder)
	}
	return []arrivals.Trace{machines, batches}, nil
}

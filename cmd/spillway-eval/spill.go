package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/spill"
	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/spill/pods"
)

func spilling() verb {
	return verb{
		name:    "spill",
		summary: "recorded loads: what hosts and functions cost by several policies, and how late they are",
		explain: `
Every policy sees how many tasks came in each minute that has ended, and decides what hosts it holds, of five types with
their prices. A host serves a minute after it is launched and is held for ten more at least; it is paid from its launch
on. Tasks arrive as a Poisson process does that has as many in the minute as recorded; each is served by the host that
does it first, or by a function where no host would within the second that it may take. A function that has no
environment to spare starts one, and its task is late. All of it is in internal/spill/setting.go, with its sources.

  cost_over_oracle  (cost - oracle) / oracle; the oracle knows the next ten minutes and holds the best combination of
                    hosts for them, without delay and without a queue
  slo_miss          tasks that took longer than a second
  cost_usd          of hosts and functions, after the first ten minutes

Baselines: the six simple policies functions_only, static_peak (it knows the peak), mean_tracking, last_max_20pct,
last_best and newsvendor; Kubernetes's own autoscalers kpa and hpa, which scale c5.large up to what the peak takes,
alone and (with _functions) beside functions; oracle_10min, and slot_bound, which no policy can undercut.`,
		define: func(flags *flag.FlagSet) func(context.Context, common) error {
			seed := flags.Uint64("seed", 1, "`number` from which arrivals are drawn")
			days := flags.Int("days", 0, "how `many` days of each set are replayed; 0 for all")
			return func(ctx context.Context, with common) error {
				if *days < 0 {
					return usageError(fmt.Sprintf("--days %d: give 0 for all, or more", *days))
				}
				return evaluateSpilling(ctx, with, *seed, *days)
			}
		},
	}
}

// loadSet is a folder with one file of arrivals.
type loadSet struct {
	name, file string
	factor     float64 // what recorded counts are multiplied with, so that hosts are needed
	read       func(path string, factor float64) ([]float64, error)
}

func loadSets() []loadSet {
	return []loadSet{
		{"twitter_rps", "rps.txt.gz", 1, spill.Seconds},
		{"nasa_rps", "rps.txt.gz", 60, spill.Seconds},
		{"azure_llm_2023", "AzureLLMInferenceTrace_conv.csv", 10, spill.Stamps},
	}
}

func evaluateSpilling(ctx context.Context, with common, seed uint64, days int) error {
	found := false
	for _, set := range loadSets() {
		loads, err := set.read(filepath.Join(with.data, set.name, set.file), set.factor)
		if errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(with.notes, "spillway-eval spill: %s is absent from %s: skipped\n", set.name, with.data)
			continue
		}
		if err != nil {
			return err
		}
		found = true
		if minutes := days * 24 * 60; days > 0 && minutes < len(loads) {
			loads = loads[:minutes]
		}
		if err := set.evaluate(ctx, with, loads, seed); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s holds none of the sets: name the folder that contains twitter_rps, nasa_rps or "+
			"azure_llm_2023", with.data)
	}
	return nil
}

func (s loadSet) evaluate(ctx context.Context, with common, loads []float64, seed uint64) error {
	setting := spill.Inception()
	if len(loads) < 2*setting.Hold {
		return fmt.Errorf("%s has %d minutes: at least %d are needed", s.name, len(loads), 2*setting.Hold)
	}
	covers := spill.NewCovers(setting.Terms, 2*slices.Max(loads))
	entrants := spillEntrants(setting, covers, slices.Max(loads))
	scores, err := spill.Replay(ctx, setting, loads, seed, entrants)
	if err != nil {
		return err
	}
	oracle, bound := covers.Oracles(loads)
	cost := s.figure("cost_usd", "usd", len(loads))
	over := s.figure("cost_over_oracle", "ratio", len(loads))
	miss := s.figure("slo_miss", "ratio", len(loads))
	spilled := s.figure("spilled", "ratio", len(loads))
	put := func(name string, usd, missed, part float64) {
		if name == ours {
			cost.Ours, over.Ours, miss.Ours, spilled.Ours = usd, usd/oracle-1, missed, part
			return
		}
		cost.Baselines[name], over.Baselines[name], miss.Baselines[name] = usd, usd/oracle-1, missed
		spilled.Baselines[name] = part
	}
	for i, entrant := range entrants {
		put(entrant.Name, scores[i].Cost(), scores[i].Missing(), scores[i].Spilling())
	}
	put("oracle_10min", oracle, 0, 0)
	put("slot_bound", bound, 0, 0)
	with.report.add(over, miss, cost, spilled)
	return nil
}

func (s loadSet) figure(metric, unit string, n int) figure {
	return figure{
		Eval: "spill", Set: s.name, Case: fmt.Sprintf("x%g", s.factor), Metric: metric, Unit: unit,
		Baselines: map[string]float64{}, N: n,
	}
}

// spillEntrants are ours and those that it is compared with; most is the most of all loads.
func spillEntrants(setting spill.Setting, covers spill.Covers, most float64) []spill.Entrant {
	entrants := []spill.Entrant{{Name: ours, Spills: true, Policy: &spill.Ours{
		Terms: setting.Terms, Forecaster: spill.NewEmpirical(setting.Horizon()),
	}}}
	simple := spill.Simple(setting.Terms, covers, most)
	for _, name := range slices.Sorted(maps.Keys(simple)) {
		entrants = append(entrants, spill.Entrant{Name: name, Policy: simple[name], Spills: true})
	}
	pod := setting.Unit()
	atMost := int(math.Ceil(most / setting.Hosts[pod].Tasks))
	return append(entrants,
		spill.Entrant{Name: "kpa", Policy: pods.NewKPA(setting, pod, atMost)},
		spill.Entrant{Name: "kpa_functions", Policy: pods.NewKPA(setting, pod, atMost), Spills: true},
		spill.Entrant{Name: "hpa", Policy: pods.NewHPA(setting, pod, atMost)},
		spill.Entrant{Name: "hpa_functions", Policy: pods.NewHPA(setting, pod, atMost), Spills: true},
	)
}

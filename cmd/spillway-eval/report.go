package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// figure is one measured number beside those of others.
type figure struct {
	Eval   string `json:"eval"`
	Set    string `json:"set"`
	Case   string `json:"case"`
	Metric string `json:"metric"`
	// Unit is "ratio", "times", "per_hour", "ms", "s", "gbh" (10^9 bytes for an hour), "usd", "attempts", "arrivals",
	// "changes", "budgets" or "nats" (natural logarithms).
	Unit string `json:"unit"`
	// Ours is Spillway's.
	Ours float64 `json:"ours"`
	// Baselines are those of others, measured in the same run, by name.
	Baselines map[string]float64 `json:"baselines"`
	// Published is what a paper says about this very set and case; nil when none does.
	Published *float64 `json:"published"`
	// N is how many cases, such as ticks, the figures rest on.
	N int `json:"n"`
}

// report writes figures as they come: as JSON lines, or as one table for each set, case and metric.
type report struct {
	json bool
	out  io.Writer

	err error // the first error of writing; close returns it
}

// add writes figures that belong together: the same set and case, and the same baselines.
func (r *report) add(figures ...figure) {
	if r.err != nil || len(figures) == 0 {
		return
	}
	if r.json {
		encoder := json.NewEncoder(r.out)
		for _, f := range figures {
			if r.err == nil {
				r.err = encoder.Encode(f)
			}
		}
		return
	}
	r.err = r.table(figures)
}

// table has a row for each policy and a column for each metric.
func (r *report) table(figures []figure) error {
	first := figures[0]
	if _, err := fmt.Fprintf(r.out, "%s / %s / %s (n = %d)\n", first.Eval, first.Set, first.Case, first.N); err != nil {
		return err
	}
	// Its errors come from Flush.
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, value func(figure) string) {
		_, _ = fmt.Fprintf(table, "\t%s\t", name)
		for _, f := range figures {
			_, _ = fmt.Fprintf(table, "%s\t", value(f))
		}
		_, _ = fmt.Fprintln(table)
	}
	row("", func(f figure) string { return f.Metric })
	row("spillway", func(f figure) string { return f.text(f.Ours) })
	for _, name := range slices.Sorted(maps.Keys(first.Baselines)) {
		row(name, func(f figure) string { return f.text(f.Baselines[name]) })
	}
	if slices.ContainsFunc(figures, func(f figure) bool { return f.Published != nil }) {
		row("published", func(f figure) string {
			if f.Published == nil {
				return "-"
			}
			return f.text(*f.Published)
		})
	}
	_, _ = fmt.Fprintln(table)
	return table.Flush()
}

func (f figure) text(value float64) string {
	switch f.Unit {
	case "ratio":
		return fmt.Sprintf("%.3f%%", value*100)
	case "s":
		return fmt.Sprintf("%.4g", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}

// close returns the first error of writing.
func (r *report) close() error {
	if r.err != nil {
		return fmt.Errorf("write the figures: %w", r.err)
	}
	return nil
}

package display

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim/policy"
)

// Simulation is what the replay of a trace came to, with all that was assumed.
type Simulation struct {
	Trace string `json:"trace"`
	// Start is the time of the first arrival, Seconds how long the trace goes on.
	Start   time.Time `json:"start"`
	Seconds float64   `json:"seconds"`
	// Tasks came, which take CoreSeconds; Impossible of them take longer than the limit by themselves.
	Tasks       int     `json:"tasks"`
	CoreSeconds float64 `json:"core_seconds"`
	Impossible  int     `json:"impossible_tasks"`
	// LimitSeconds is how long after its arrival a task is late.
	LimitSeconds float64 `json:"slo_seconds"`
	// Scores are those of the policies.
	Scores []policy.Score `json:"scores"`
	// Hosts are those of ours; 0 where that was not asked for. Host is the type of all, HostPrice what one costs in an
	// hour, HostStart in how many seconds one starts.
	Hosts     int            `json:"hosts,omitempty"`
	ByMean    bool           `json:"hosts_by_mean,omitempty"` // as many as the mean load keeps busy
	Host      string         `json:"host"`
	Cores     int            `json:"host_cores"`
	HostPrice quantity.Money `json:"host_picodollars_per_hour"`
	HostStart float64        `json:"host_start_seconds"`
	// Function is the offer of the catalogue that functions are.
	Function       string         `json:"function"`
	FunctionMemory quantity.Bytes `json:"function_memory_bytes"`
	PerGiBSecond   quantity.Money `json:"function_picodollars_per_gib_second"`
	PerRequest     quantity.Money `json:"function_picodollars_per_request"`
	ColdStart      float64        `json:"function_cold_start_seconds"`
	Concurrency    int            `json:"function_concurrency"`
	KeepWarm       float64        `json:"function_keep_warm_seconds"`
	// Notes are what else is to be known.
	Notes []string `json:"notes"`
}

// Lines are a table with a row for each policy, the best one marked, and what was assumed.
func (r Simulation) Lines(s Style) []string {
	lines := wrapped("", fmt.Sprintf("%s: %s in %s, %s of work; late is what ends more than %s after it came", r.Trace,
		Count(r.Tasks, "task"), seconds(r.Seconds), coreTime(r.CoreSeconds), seconds(r.LimitSeconds)), s.page())
	t := newTable("policy", "", ">cost", ">p50", ">p95", ">p99", ">late", ">hosts at most", ">on functions")
	best := 0
	for i, score := range r.Scores {
		mark := ""
		if score.Best {
			mark, best = "best", i
		}
		t.add(score.Policy, mark, score.Cost.String(), seconds(score.P50), seconds(score.P95), seconds(score.P99),
			percent(score.Late), strconv.Itoa(score.MostHosts), percent(score.OnFunctions))
	}
	table := t.lines(s, "")
	if len(r.Scores) > 0 {
		table[best+1] = s.paint(bold, table[best+1])
	}
	lines = append(append(append(lines, ""), table...), "")
	for _, note := range append(r.notes(), r.assumed()) {
		lines = append(lines, wrapped("", note, s.page())...)
	}
	return lines
}

// coreTime writes the time of a core: "20.0 core-s", "3.2 core-h".
func coreTime(value float64) string {
	if value < 3600 {
		return strconv.FormatFloat(value, 'f', 1, 64) + " core-s"
	}
	return strconv.FormatFloat(value/3600, 'f', 1, 64) + " core-h"
}

func (r Simulation) notes() []string {
	notes := r.Notes
	if r.Impossible > 0 {
		notes = append(notes, fmt.Sprintf("late with every policy: %s with more work than %s (--slo)",
			Count(r.Impossible, "task"), seconds(r.LimitSeconds)))
	}
	return notes
}

// assumed says on what the figures rest, and which flags set it.
func (r Simulation) assumed() string {
	text := fmt.Sprintf("assumed: hosts are %s with %s (--host) at %s an hour (--host-price), which serve %s after their "+
		"launch (--host-start); functions are %s with %s, which is one core, at $%s for a GiB second and $%s for an invoke "+
		"(--function-price-factor, --prices), start in %s (--function-cold-start), stay warm for %s, and are at most %d "+
		"at once (--function-concurrency)",
		r.Host, Count(r.Cores, "core"), r.HostPrice, seconds(r.HostStart), r.Function, r.FunctionMemory,
		r.PerGiBSecond.Decimal(), r.PerRequest.Decimal(), seconds(r.ColdStart), seconds(r.KeepWarm), r.Concurrency)
	if r.Hosts > 0 {
		why := ""
		if r.ByMean {
			why = ", as many as the mean of the trace keeps busy"
		}
		text += fmt.Sprintf("; ours holds %s all the time (--hosts)%s, since no engine launches hosts by itself",
			Count(r.Hosts, "host"), why)
	}
	return text + "; the rest begin with one host that serves, static with all"
}

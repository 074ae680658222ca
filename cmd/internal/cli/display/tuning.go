package display

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// UsualTrials is how many trials of a tuning are listed unless somebody asks for more.
const UsualTrials = 20

// TuningPlan is one line that says what a tuning does.
func TuningPlan(t runs.Tuning) string {
	o := t.Options
	text := fmt.Sprintf("%s by %s", Count(o.Trials, "trial"), o.Algorithm)
	if rungs := o.Rungs(); rungs > 1 {
		text += fmt.Sprintf(", %d rungs up to %s, of each the best 1 in %d goes on", rungs, plainNumber(o.Most), o.Eta)
	}
	return text + ", " + Clean(t.Objective) + " " + direction(o)
}

func direction(o search.Options) string {
	if o.Maximise {
		return "maximised"
	}
	return "minimised"
}

// TuningNow is one line that says how far a tuning is.
func TuningNow(t runs.Tuning) string {
	text := fmt.Sprintf("%d of %s begun", t.Begun, Count(t.Options.Trials, "trial"))
	if counts := trialCounts(t); counts != "" {
		text += ": " + counts
	}
	if rungs := t.Rungs(); len(rungs) > 1 {
		in := make([]string, len(rungs))
		for i, rung := range rungs {
			in[i] = strconv.Itoa(rung.Begun)
		}
		text += "; in rungs " + strings.Join(in, ", ")
	}
	return text + "; " + t.Spent.String()
}

// trialCounts says how many trials are in which state: "2 running, 7 stopped, 1 failed".
func trialCounts(t runs.Tuning) string {
	var parts []string
	for _, state := range []runs.TrialState{
		runs.TrialRunning, runs.TrialWaiting, runs.TrialFinished, runs.TrialStopped, runs.TrialDiverged, runs.TrialFailed,
	} {
		word := string(state)
		if state == runs.TrialRunning { // or its task waits for a slot
			word = "under way"
		}
		if n := t.Counts[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	return strings.Join(parts, ", ")
}

// TuningBest is one line that says which trial is the best so far; empty where none is.
func TuningBest(t runs.Tuning) string {
	trial, job, found := bestOf(t)
	if !found {
		return ""
	}
	return fmt.Sprintf("%s: %s", bestWords(t, trial, job), configuration(t.Space, trial.Configuration, plainValue))
}

// bestWords say what the best trial told, and when: "loss 0.021 by trial 12 at 9 of 27".
func bestWords(t runs.Tuning, trial runs.Trial, job runs.TrialJob) string {
	text := fmt.Sprintf("%s %s by trial %d", Clean(t.Objective), plainNumber(*job.Objective), trial.Number)
	if t.Options.Rungs() > 1 {
		text += fmt.Sprintf(" at %s of %s", plainNumber(job.To), plainNumber(t.Options.Most))
	}
	return text
}

// bestOf is the best trial so far, and its last job that told an objective.
func bestOf(t runs.Tuning) (trial runs.Trial, job runs.TrialJob, found bool) {
	if t.Best == nil {
		return trial, job, false
	}
	for _, trial = range t.Trials {
		if trial.Number == *t.Best {
			job, found = trial.Told()
			return trial, job, found
		}
	}
	return runs.Trial{}, job, false
}

// configuration writes values in the order of the space: "lr=0.0034 layers=4".
func configuration(space search.Space, c search.Configuration, write func(search.Value) string) string {
	parts := make([]string, 0, len(c))
	for _, p := range space {
		if v, exists := c[p.Name]; exists {
			parts = append(parts, Clean(p.Name)+"="+write(v))
		}
	}
	return strings.Join(parts, " ")
}

// plainValue writes a value short enough to compare.
func plainValue(v search.Value) string {
	if v.Text != "" {
		return Clean(v.Text)
	}
	return plainNumber(v.Number)
}

// plainNumber writes four digits, and whole numbers below a million whole.
func plainNumber(v float64) string {
	if v == float64(int64(v)) && v > -1e6 && v < 1e6 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// endedWords says why a tuning has ended.
func endedWords(t runs.Tuning) string {
	switch t.Ended {
	case "":
		return "goes on"
	case runs.EndedDone:
		return "is done"
	case runs.EndedTime:
		return "ended as its time was over"
	case runs.EndedDeadline:
		return "ended as another job would have missed the deadline"
	case runs.EndedMoney:
		return "ended as its money did not pay another job"
	case runs.EndedBudget:
		return "ended as the run's budget did not pay another job"
	case runs.EndedFailed:
		return "failed"
	case runs.EndedCancelled:
		return "was cancelled"
	default:
		return "ended: " + Clean(t.Ended)
	}
}

// Tuning returns the lines that say what a tuning has found so far, and what each rung came to. Again is the command
// line that runs with the best configuration; empty leaves it out.
func Tuning(t runs.Tuning, again string, s Style) []string {
	head := fmt.Sprintf("tuning %s %s: %s", Clean(t.Name), endedWords(t), TuningPlan(t))
	lines := wrapped("", head, s.page())
	if trial, job, found := bestOf(t); found {
		lines = append(lines, s.paint(green, "  best      "+bestWords(t, trial, job)))
		lines = append(lines, wrapped("  with      ",
			configuration(t.Space, trial.Configuration, search.Value.String), s.page())...)
	}
	if again != "" { // whole, to be copied
		lines = append(lines, "  again     "+again)
	}
	lines = append(lines, wrapped("  trials    ", fmt.Sprintf("%d begun: %s; %s", t.Begun, trialCounts(t), t.Spent),
		s.page())...)
	if t.Begun == 0 {
		return lines
	}
	table := newTable(">rung", ">to", ">trials", ">told", ">best "+Clean(t.Objective), ">wait+run", ">cost")
	table.spare = []int{3, 5}
	for _, rung := range t.Rungs() {
		best := "-"
		if rung.Best != nil {
			best = plainNumber(*rung.Best)
		}
		table.add(strconv.Itoa(rung.Rung), plainNumber(rung.To), strconv.Itoa(rung.Begun), strconv.Itoa(rung.Told), best,
			seconds(rung.Seconds), rung.Spent.String())
	}
	return append(append(lines, ""), table.lines(s, "  ")...)
}

// Tunings returns the lines that say of each tuning what it has found, and list its best trials, at most so many.
func Tunings(all []runs.Tuning, most int, s Style) (lines []string) {
	for _, tuning := range all {
		lines = append(append(lines, ""), Tuning(tuning, "", s)...)
		lines = append(lines, trials(tuning, most, s)...)
	}
	return lines
}

// trials returns a table of the best trials of a tuning, at most so many, with why each ended.
func trials(t runs.Tuning, most int, s Style) []string {
	ranked := t.Ranked()
	if len(ranked) == 0 {
		return nil
	}
	table := newTable(">trial", "configuration", ">rung", ">"+Clean(t.Objective), "state", ">cost", "why")
	table.spare = []int{6, 5}
	table.cuts = 6
	for _, trial := range ranked[:min(most, len(ranked))] {
		told, rung := "-", "-"
		if job, found := trial.Told(); found {
			told, rung = plainNumber(*job.Objective), strconv.Itoa(job.Rung)
		} else if n := len(trial.Jobs); n > 0 {
			rung = strconv.Itoa(trial.Jobs[n-1].Rung)
		}
		table.add(strconv.Itoa(trial.Number), configuration(t.Space, trial.Configuration, plainValue), rung, told,
			string(trial.State), spent(trial.Spent(), trial.State == runs.TrialRunning), OrDash(Clean(trial.Why)))
	}
	lines := append([]string{""}, table.lines(s, "  ")...)
	lines = append(lines, table.note(s, "  ")...)
	if left := len(ranked) - most; left > 0 {
		lines = append(lines, s.paint(dim, fmt.Sprintf("  the best %d of %d; --trials %d lists all", most, len(ranked),
			len(ranked))))
	}
	return lines
}

// TuningLive returns the lines that show a tuning while it goes on, each of which fits the style's width.
func TuningLive(t runs.Tuning, s Style) []string {
	lines := []string{s.bar(t.Begun-t.Counts[runs.TrialRunning], t.Options.Trials, barWidth) + " " +
		s.cut(TuningNow(t), s.columns()-barWidth-1)}
	if best := TuningBest(t); best != "" {
		lines = append(lines, s.cut("best "+best, s.columns()))
	}
	return lines
}

// TrialFailed is one line that says why a trial failed.
func TrialFailed(trial runs.Trial) string {
	return fmt.Sprintf("trial %d failed: %s", trial.Number, OrDash(Clean(trial.Why)))
}

package wire

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
)

const (
	donePrefix   = "spillway.done."
	resultPrefix = "spillway.results."
	endPrefix    = "$KV." + EndBucket + "."
)

// BuildSubjects are the subjects of NATS on which the workflow worker of a build may publish: it tells hints and ends
// of runs, looks results up and leaves what its runs took of them. Wildcards stand for what they match. What it says
// there is checked by CheckTold.
func BuildSubjects(app App) []string {
	subjects := buildSubjects()
	for _, pipeline := range app.Pipelines {
		subjects = append(subjects, doneSubjects(DoneSubject(pipeline.Name))...)
	}
	return subjects
}

// AnyBuildSubjects are the subjects on which the workflow worker of some build may publish.
func AnyBuildSubjects() []string { return append(buildSubjects(), doneSubjects(donePrefix+"*")...) }

// buildSubjects are those of every build.
func buildSubjects() []string {
	const api, ends, results = "$JS.API.", endPrefix + "*", resultPrefix + "*.*.*"
	subjects := []string{
		LoopSubject(KindRunStarted), LoopSubject(KindRunEnded), LoopSubject(KindGoalChanged), LoopSubject(KindScheduled),
		LoopSubject(KindReused),
		ends, api + "STREAM.INFO.KV_" + EndBucket, api + "DIRECT.GET.KV_" + EndBucket + "." + ends,
		results, api + "STREAM.INFO." + ResultStream, api + "DIRECT.GET." + ResultStream + "." + results,
		// An end that is told late is looked for in the streams.
		api + "CONSUMER.CREATE." + LoopStream + ".*." + LoopSubject(KindRunEnded),
	}
	for _, stream := range []string{LoopStream, DoneStream} {
		for _, call := range []string{"MSG.NEXT", "INFO", "DELETE"} {
			subjects = append(subjects, api+"CONSUMER."+call+"."+stream+".*")
		}
	}
	return subjects
}

// doneSubjects are those of a build that has a pipeline whose completion events go to this subject.
func doneSubjects(done string) []string {
	return []string{done, "$JS.API.CONSUMER.CREATE." + DoneStream + ".*." + done}
}

// IsBuildHeader says whether a header of what the workflow worker of a build publishes goes on to NATS: all that NATS
// does not act on, and of those on which it does, the ones by which a message is kept once, or while another is there.
func IsBuildHeader(name string) bool {
	switch lower := strings.ToLower(name); {
	case strings.HasPrefix(lower, "nats-"):
		return name == MessageIDHeader || lower == "nats-expected-stream" ||
			lower == "nats-expected-last-subject-sequence" || lower == "nats-expected-last-subject-sequence-subject"
	default:
		return !strings.HasPrefix(lower, "kv-")
	}
}

// IsResultSubject says whether results are kept on a subject.
func IsResultSubject(subject string) bool { return strings.HasPrefix(subject, resultPrefix) }

// IsEntry says whether what a build publishes on a subject makes an entry of how far ends were told, or of what runs
// took.
func IsEntry(subject string) bool {
	return strings.HasPrefix(subject, endPrefix) || IsResultSubject(subject)
}

// TooFast begins the reason of every answer by which a build is told to wait and to send it again. Clients of NATS keep
// only the reason of some answers.
const TooFast = "the build sends more than NATS takes for it"

// RunStartedID is the ID of the message that tells of a run's start.
func RunStartedID(run string) string { return run + "/started" }

// RunEndedID is the ID of the message that tells of a run's end.
func RunEndedID(run string) string { return run + "/ended" }

// CheckTold says why the workflow worker of a build of app may not publish a message with this ID, empty for none, on
// one of BuildSubjects; nil where it may. It tells of runs of its own pipelines, and under their IDs: equal IDs are one
// message of a stream, so under those of another it would have what that one tells dropped.
func CheckTold(app App, subject, id string, data []byte) error {
	switch {
	case strings.HasPrefix(subject, loopPrefix):
		return checkFact(app, Kind(strings.TrimPrefix(subject, loopPrefix)), id, data)
	case strings.HasPrefix(subject, donePrefix):
		return checkDone(app, subject, id, data)
	case id != "":
		return fmt.Errorf("the message on %s has the ID %.80q: leave it out", subject, id)
	case strings.HasPrefix(subject, endPrefix) && len(data) > maxEnd:
		return fmt.Errorf("how far an end was told takes %d bytes, not %d", maxEnd, len(data))
	case strings.HasPrefix(subject, resultPrefix) && !strings.HasPrefix(strings.Split(subject, ".")[3], takenPrefix):
		return fmt.Errorf("a workflow worker keeps what its runs took, and nothing else: %s is no subject for that", subject)
	default:
		return nil
	}
}

// maxEnd is the longest value of EndBucket, in bytes.
const maxEnd = 16

// checkFact checks a hint, or the start or end of a run.
func checkFact(app App, kind Kind, id string, data []byte) error {
	message, err := DecodeMessage(data)
	if err != nil {
		return err
	}
	if message.Kind() != kind {
		return fmt.Errorf("a message of kind %q is none for %s", message.Kind(), LoopSubject(kind))
	}
	var run, own string
	var of *predictor.StageID
	switch event := message.Event.(type) {
	case predictor.RunStarted:
		run, own = event.Run, RunStartedID(event.Run)
		if event.App != app.Name || !app.has(event.Pipeline) {
			return fmt.Errorf("pipeline %q of app %q is none of its build's", event.Pipeline, event.App)
		}
	case predictor.RunEnded:
		run, own = event.Run, RunEndedID(event.Run)
	case predictor.GoalChanged:
		run = event.Run
	case predictor.Scheduled:
		run, of = event.Run, &event.Stage
	case predictor.Reused:
		run, of = event.Run, &event.Stage
	default:
		return fmt.Errorf("a workflow worker has no message of kind %q to tell", kind)
	}
	if of != nil && of.App != app.Name {
		return fmt.Errorf("stage %q of app %q is none of its build's", of.Name, of.App)
	}
	if id != "" && id != own {
		return fmt.Errorf("the ID %.80q is none for %s of run %.80q", id, kind, run)
	}
	return app.checkRun(run)
}

// checkDone checks a completion event.
func checkDone(app App, subject, id string, data []byte) error {
	var done Done
	if err := json.Unmarshal(data, &done); err != nil {
		return fmt.Errorf("decode completion event: %w", err)
	}
	if !app.has(done.Pipeline) || DoneSubject(done.Pipeline) != subject {
		return fmt.Errorf("a completion event of pipeline %q is none for %s", done.Pipeline, subject)
	}
	if id != done.Run {
		return fmt.Errorf("the ID %.80q is none for the completion event of run %.80q", id, done.Run)
	}
	return app.checkRun(done.Run)
}

// has says whether the app has the pipeline.
func (a App) has(pipeline string) bool {
	return slices.ContainsFunc(a.Pipelines, func(p Pipeline) bool { return p.Name == pipeline })
}

// checkRun refuses a run that is of no pipeline of the app.
func (a App) checkRun(run string) error {
	if err := CheckText(run, MaxName); err != nil {
		return fmt.Errorf("the name %.40q: %w", run, err)
	}
	if unnamedChild.MatchString(run) ||
		slices.ContainsFunc(a.Pipelines, func(p Pipeline) bool { return IsRunOf(p.Name, run) }) {
		return nil
	}
	return fmt.Errorf("the run %.80q is none of its build's", run)
}

// unnamedChild is the name of a run that another one has started without naming it: a UUID of Temporal's, which nobody
// guesses, and a number.
var unnamedChild = regexp.MustCompile(`^[0-9a-f-]{36}_[0-9]+(/|$)`)

// RunSeparator stands between the name of a pipeline and that of the event in the name of a run.
func RunSeparator(pipeline string) string {
	if strings.Contains(pipeline, "-") {
		return "--"
	}
	return "-"
}

// IsRunOf says whether a run has a name that only a run of pipeline has, or one that such a run has started and named.
// No event's part of a name begins with a dash or has two in a row.
func IsRunOf(pipeline, run string) bool {
	event, is := strings.CutPrefix(run, pipeline+RunSeparator(pipeline))
	first, _, _ := strings.Cut(event, "/") // what a child's own name holds is the pipeline's affair
	return is && event != "" && !strings.HasPrefix(first, "-") && !strings.Contains(first, "--")
}

package wire

import "strings"

// BuildSubjects are the subjects of NATS on which the workflow worker of a build may publish: it tells hints and ends
// of runs, looks results up and leaves what its runs took of them. Wildcards stand for what they match. The names of
// runs are no part of the subjects, so a build can tell of runs that are not its own.
func BuildSubjects(app App) []string {
	const api, ends, results = "$JS.API.", "$KV." + EndBucket + ".*", "spillway.results.*.*.*"
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
	for _, pipeline := range app.Pipelines {
		done := DoneSubject(pipeline.Name)
		subjects = append(subjects, done, api+"CONSUMER.CREATE."+DoneStream+".*."+done)
	}
	return subjects
}

// IsBuildHeader says whether a header of what the workflow worker of a build publishes goes on to NATS: all that NATS
// does not act on, and of those on which it does, the ones by which a message is kept once.
func IsBuildHeader(name string) bool {
	lower := strings.ToLower(name)
	return !strings.HasPrefix(lower, "nats-") && !strings.HasPrefix(lower, "kv-") ||
		name == MessageIDHeader || strings.HasPrefix(lower, "nats-expected-")
}

const (
	startedID = "/started"
	endedID   = "/ended"
)

// RunStartedID is the ID of the message that tells of a run's start.
func RunStartedID(run string) string { return run + startedID }

// RunEndedID is the ID of the message that tells of a run's end.
func RunEndedID(run string) string { return run + endedID }

// IsBuildMessageID says whether the workflow worker of a build may give what it publishes on subject this ID. Equal IDs
// are one message of a stream, so in the loop's it may not have those of the Records and host accounts of others.
func IsBuildMessageID(subject, id string) bool {
	return !strings.HasPrefix(subject, loopPrefix) || strings.HasSuffix(id, startedID) || strings.HasSuffix(id, endedID)
}

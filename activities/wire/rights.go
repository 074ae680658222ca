package wire

// Rights are the subjects of NATS that a client may publish on and subscribe to; wildcards stand for what they match.
type Rights struct{ Publish, Subscribe []string }

// InboxPrefix is that of the subjects on which the workflow worker of a build takes answers, so that no other build can read them.
func InboxPrefix(app, build string) string { return "_INBOX_" + digestToken(WorkflowQueue(app, build)) }

// sharedInbox is where every client takes answers that does not say otherwise.
const sharedInbox = "_INBOX"

// BuildRights are those of the workflow worker of a build: it tells hints and ends of runs, looks results up and leaves what its runs took of them.
// The names of runs are no part of the subjects, so a build can tell of runs that are not its own.
func BuildRights(app App, build string) Rights {
	inbox := sharedInbox
	if app.OwnInbox {
		inbox = InboxPrefix(app.Name, build)
	}
	const api, ends, results = "$JS.API.", "$KV." + EndBucket + ".*", "spillway.results.*.*.*"
	publish := []string{
		LoopSubject(KindRunStarted), LoopSubject(KindRunEnded), LoopSubject(KindGoalChanged), LoopSubject(KindScheduled), LoopSubject(KindReused),
		ends, api + "STREAM.INFO.KV_" + EndBucket, api + "DIRECT.GET.KV_" + EndBucket + "." + ends,
		results, api + "STREAM.INFO." + ResultStream, api + "DIRECT.GET." + ResultStream + "." + results,
		// An end that is told late is looked for in the streams.
		api + "CONSUMER.CREATE." + LoopStream + ".*." + LoopSubject(KindRunEnded),
	}
	for _, stream := range []string{LoopStream, DoneStream} {
		for _, call := range []string{"MSG.NEXT", "INFO", "DELETE"} {
			publish = append(publish, api+"CONSUMER."+call+"."+stream+".*")
		}
	}
	for _, pipeline := range app.Pipelines {
		publish = append(publish, DoneSubject(pipeline.Name), api+"CONSUMER.CREATE."+DoneStream+".*."+DoneSubject(pipeline.Name))
	}
	return Rights{Publish: publish, Subscribe: []string{inbox + ".>"}}
}

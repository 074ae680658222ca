package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Streams of JetStream.
const (
	// LoopStream holds hints, Records and decisions in one order; the autoscaler and the ledger fold it. Samples of builds
	// of before 2026-11-23 are in it as well.
	LoopStream = "SPILLWAY_LOOP"
	// SampleStream holds samples, for hours: there is one for each attempt and second.
	SampleStream = "SPILLWAY_SAMPLES"
	// EventStream holds the events that trigger runs.
	EventStream = "SPILLWAY_EVENTS"
	// DeadStream holds events that could not start a run, with the reason.
	DeadStream = "SPILLWAY_DEAD"
	// DoneStream holds one completion event for every run that ended.
	DoneStream = "SPILLWAY_DONE"
	// ResultStream holds the results of tasks that later runs may take.
	ResultStream = "SPILLWAY_RESULTS"
	// LogStream holds what attempts print.
	LogStream = "SPILLWAY_LOGS"
)

// What the subjects of LoopStream and of SampleStream begin with; the kind of message follows.
const (
	loopPrefix   = "spillway.loop."
	samplePrefix = "spillway.samples."
)

// Subjects.
const (
	// LoopSubjects is what LoopStream captures; the last token is the kind of message.
	LoopSubjects = loopPrefix + ">"
	// SampleSubjects is what SampleStream captures; the last token is the kind of message.
	SampleSubjects = samplePrefix + ">"
	// EventSubjects is what EventStream captures before any binding adds a subject of its own.
	EventSubjects = "events.>"
	// DeadSubjects is what DeadStream captures; the last token is the pipeline.
	DeadSubjects = "spillway.dead.>"
	// DoneSubjects is what DoneStream captures; the last token is the pipeline.
	DoneSubjects = "spillway.done.>"
	// AlertSubjects is where alerts go; the last token is the pipeline.
	AlertSubjects = "spillway.alert.>"
	// ResultSubjects is what ResultStream captures; the last tokens are content, code and run.
	ResultSubjects = "spillway.results.>"
	// LogSubjects is what LogStream captures; the last tokens are run, stage, task and attempt.
	LogSubjects = "spillway.logs.>"
)

// MaxTerm is the largest term of a leader that counts: who takes one each millisecond comes there in 140 million years.
// What claims to be of a later one was written by no leader, and is as good as unreadable.
const MaxTerm = 1 << 62

// Key-value buckets and keys.
const (
	// PlanBucket holds the plan in force under PlanKey, what each host obeys of it under HostPlanPrefix and the host's
	// name, and the term under TermKey.
	PlanBucket     = "spillway_plan"
	PlanKey        = "current"
	HostPlanPrefix = "host."
	TermKey        = "term"
	// LeaseBucket holds, under LeaseKey, who leads the loop.
	LeaseBucket = "spillway_lead"
	LeaseKey    = "lease"
	// ServerBucket holds one leased entry per server of the stack; only servers read and write it.
	ServerBucket = "spillway_servers"
	// HostBucket holds one leased inventory per host.
	HostBucket = "spillway_hosts"
	// StateBucket holds the autoscaler's checkpoint under StateKey, and beside it the last one of each earlier build that
	// wrote it in another way.
	StateBucket = "spillway_state"
	StateKey    = "autoscaler"
	// EndBucket holds, under the digest of a run's name, how far its end was told.
	EndBucket = "spillway_ends"
	// SharedBucket holds the documents that the servers of a stack share, sealed: package activities/documents.
	SharedBucket = "spillway_shared"
	// BindingBucket holds the bindings made by command.
	BindingBucket = "spillway_bindings"
)

// Headers of messages.
const (
	// MessageIDHeader is the standard header that names an event; equal IDs are one event.
	MessageIDHeader = "Nats-Msg-Id"
	// ReasonHeader says why an event is dead.
	ReasonHeader = "Spillway-Reason"
	// SubjectHeader, SequenceHeader and IDHeader keep where a dead event came from.
	SubjectHeader  = "Spillway-Subject"
	SequenceHeader = "Spillway-Sequence"
	IDHeader       = "Spillway-Event"
	// GoalHeader carries a goal, as JSON, with an event.
	GoalHeader = "Spillway-Goal"
	// TraceHeader carries the trace context of whoever published an event, as W3C Trace Context writes it.
	TraceHeader = "traceparent"
	// RunHeader carries RunOptions, as JSON, with an event.
	RunHeader = "Spillway-Run"
	// SignatureHeader is the engine's signature of a result's bytes (Ed25519, base64).
	SignatureHeader = "Spillway-Signature"
	// PipelineHeader names the pipeline that a dead event was meant for.
	PipelineHeader = "Spillway-Pipeline"
)

// EventSubject is where events for pipeline are published when it declares no subject of its own.
func EventSubject(pipeline string) string { return "events." + token(pipeline) }

// DeadSubject is where events that could not start pipeline go.
func DeadSubject(pipeline string) string { return "spillway.dead." + token(pipeline) }

// DoneSubject is where completion events of pipeline go.
func DoneSubject(pipeline string) string { return "spillway.done." + token(pipeline) }

// LoopSubject is the subject in LoopStream of a kind of message. Samples go to FactSubject.
func LoopSubject(kind Kind) string { return loopPrefix + string(kind) }

// FactSubject is where messages of kind go: samples to SampleStream, all others to LoopStream.
func FactSubject(kind Kind) string {
	if kind == KindSampled {
		return samplePrefix + string(kind)
	}
	return LoopSubject(kind)
}

// ResultSubject is where a result of a run is kept. An empty Code stands for any code, and an empty run for any run.
func ResultSubject(key ResultKey, run string) string {
	return "spillway.results." + anyToken(key.Content) + "." + anyToken(key.Code) + "." + anyToken(digestToken(run))
}

// takenPrefix begins what stands for the code in TakenSubject.
const takenPrefix = "taken-"

// TakenSubject is where a result is kept that a run took from another: it is found as one of the run, and not as one
// that the code made.
func TakenSubject(key ResultKey, run string) string {
	return ResultSubject(ResultKey{Content: key.Content, Code: takenPrefix + key.Code}, run)
}

// digestToken is a token for a name that may hold any character and be long; empty for an empty name.
func digestToken(name string) string {
	if name == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// AlertSubject is where alerts about runs of pipeline go.
func AlertSubject(pipeline string) string { return "spillway.alert." + token(pipeline) }

// LogSubject is where what an attempt prints goes.
func LogSubject(source LogSource) string {
	return "spillway.logs." + token(source.Run) + "." + token(source.Stage) + "." + token(source.Task) + "." +
		strconv.Itoa(source.Attempt)
}

// LogFilter is the subject under which the output of a run is found; an empty stage or task and an attempt of 0 stand
// for all. Names that differ only in characters that a token cannot hold share a subject: the source in the message
// tells them apart.
func LogFilter(run, stage, task string, attempt int) string {
	number := "*"
	if attempt != 0 {
		number = strconv.Itoa(attempt)
	}
	return "spillway.logs." + token(run) + "." + anyToken(stage) + "." + anyToken(task) + "." + number
}

func anyToken(name string) string {
	if name == "" {
		return "*"
	}
	return token(name)
}

// token makes one subject token of name.
func token(name string) string {
	if name == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '*' || r == '>' || r <= ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, name)
}

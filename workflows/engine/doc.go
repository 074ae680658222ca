// Package engine is what lies below the SDK and no pipeline calls: the run that a workflow is, the chunks of its Maps, its
// money, and what workers, triggers and the engine need of that.
//
// Stages call Start and Map. A worker registers pipelines with Register and runs them with WorkerOptions, whose
// interceptor makes each workflow a run: it knows its goal, answers updates, and tells when it starts and ends.
package engine

// Package runs makes a workflow a run: a workflow that knows its goal, answers updates, keeps its money, has the chunks
// of its Maps, and tells when it starts and ends. It lies below the SDK, and no pipeline calls it.
//
// Stages call Start and Map. A worker registers pipelines with Register and runs them with WorkerOptions, whose
// interceptor does the rest; what it needs of the worker's world are the Ports.
package runs

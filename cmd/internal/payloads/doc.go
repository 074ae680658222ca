// Package payloads encrypts what the engine gives to Temporal: inputs, results, memos, details of heartbeats, arguments
// of updates and signals, and the messages and stack traces of failures. It does so on the engine's own connections.
// Workflow workers of builds and hosts elsewhere reach Temporal through proxies of the engine, so that neither has a
// key, and what was compiled before there were keys works with them.
//
// Names are not encrypted, since Temporal works with them: IDs of runs, types of workflows and stages, queues, search
// attributes (Spillway's are pipeline, goal, state and cost).
package payloads

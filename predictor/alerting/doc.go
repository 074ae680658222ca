// Package alerting says what people are told of runs whose goal is at risk and of what the engine has lost: when, and
// in which words.
package alerting

// Package fact has what the predictor is told: stages and goals, events, and Records of attempts.
package fact

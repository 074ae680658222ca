// Package training replays recorded learning curves against predictions of when a level is reached.
package training

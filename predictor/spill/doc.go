// Package spill says when functions pay for the backlog of a stage.
package spill

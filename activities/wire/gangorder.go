package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// GangOrder is what the other hosts of a gang run: the program of an attempt that its first host was given.
type GangOrder struct {
	// Workflow has scheduled the task.
	Workflow string `json:"workflow"`
	Task     Task   `json:"task"`
	Attempt  int    `json:"attempt"`
	// Command is the input of the task, a Command, as the first host was given it.
	Command json.RawMessage `json:"command"`
}

// CheckGang says why a host may not have others run a part of what it orders, at now; nil where it may, and then what
// they run. It is the task that the host was given, with the input that it was given. Key names the result of that:
// Given.Key, or what follows from Given.Input.
func (g Given) CheckGang(order GangOrder, key ResultKey, now time.Time) (c Command, err error) {
	if err := g.is(order.Task.Run, order.Task.Stage, order.Task.ID, order.Attempt); err != nil {
		return c, err
	}
	if err := errors.Join(g.Whole(), g.Expired(now)); err != nil {
		return c, err
	}
	if order.Workflow != g.Run && !strings.HasPrefix(order.Workflow, g.Run+"/") {
		return c, fmt.Errorf("workflow %.200q is none of run %q", order.Workflow, g.Run)
	}
	if !order.Task.Command {
		return c, errors.New("the task runs no command, which alone runs on several hosts")
	}
	ordered := NewResultKey(g.Stage, true, order.Task.CacheVersion, order.Command)
	if ordered != key || key == (ResultKey{}) {
		return c, errors.New("the others are to run another command than the task that the host was given")
	}
	// What this version does not know is no part of the key, and a host of a later one might heed it.
	decoder := json.NewDecoder(bytes.NewReader(order.Command))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return c, fmt.Errorf("the command is none that this version knows: %w; upgrade the server", err)
	}
	return c, nil
}

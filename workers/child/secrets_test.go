package child_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/child"
)

func TestAnAttemptReadsItsOwnSecretsAndNoOthersOfItsProcess(t *testing.T) {
	t.Parallel()
	slot := serve(t, silent)
	start := attempt("confide", `"open-key"`)
	start.Secrets = map[string]string{"open-key": "hush"}
	slot.start(start)
	if answer := slot.done(); string(answer.Output) != `"hush"` {
		t.Errorf("with its secret: %s, %+v", answer.Output, answer.Error)
	}
	slot.start(attempt("confide", `"open-key"`))
	if answer := slot.done(); answer.Error == nil || !strings.Contains(answer.Error.Message, "names no such secret") {
		t.Errorf("the next attempt, without one: %s, %+v", answer.Output, answer.Error)
	}
	if err := slot.hangUp(); err != nil {
		t.Fatal(err)
	}

	start.Task.Version = wire.Version
	answer, err := child.Function(stages(), nil, silent)(t.Context(), wire.Invoke{Version: wire.Version, Start: start})
	if err != nil || string(answer.Output) != `"hush"` {
		t.Errorf("at a function: %s, %+v, %v", answer.Output, answer.Error, err)
	}
}

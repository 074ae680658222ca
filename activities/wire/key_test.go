package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// What was read in the code of a command follows from it: a result that was kept before anybody read it is found.
func TestTheKeyOfAResultIsTheSameWhateverWasReadInItsCode(t *testing.T) {
	t.Parallel()
	key := func(c wire.Command) wire.ResultKey {
		input, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return wire.NewResultKey(predictor.StageID{App: "a", Build: "b", Name: "fit"}, true, "", input)
	}
	plain := wire.Command{Arguments: []string{"python3", "fit.py"}, Code: activities.Ref{Digest: "d"}}
	read := plain
	read.Program, read.Imports = "python3", []string{"torch"}
	if got, want := key(read), key(plain); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	none := plain
	none.Imports = []string{}
	if got, want := key(none), key(plain); got != want {
		t.Errorf("where it imports nothing: got %+v, want %+v", got, want)
	}
	other := plain
	other.Arguments = []string{"python3", "score.py"}
	if key(other) == key(plain) {
		t.Error("another program has the same key")
	}
}

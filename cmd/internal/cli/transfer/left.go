package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Left is a file or a directory that a run has left.
type Left struct {
	// Name is where it belongs below a directory of results, with slashes; "." is that directory itself.
	Name string `json:"path"`
	// Tree says that the artifact is a packed directory.
	Tree bool `json:"directory"`
	// Digest is the address of the artifact, and Bytes its size.
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}

// LeftByChain are the outputs of the stages that no other waits for, or with all those of every stage: as STAGE/PATH,
// or STAGE/TASK/PATH where the stage fans out.
func LeftByChain(result chain.Result, steps []chain.Step, all bool) (files []Left) {
	for _, step := range steps {
		if !step.Last && !all {
			continue
		}
		outputs := result.Stages[step.Stage].Outputs
		for _, name := range slices.Sorted(maps.Keys(outputs)) {
			for task, file := range outputs[name] {
				where := step.Stage
				if len(step.Over) > 0 {
					where += "/" + strconv.Itoa(task)
				}
				files = appendLeft(files, where+"/"+file.Path, file.Tree, file.Artifact)
			}
		}
	}
	return files
}

// LeftByProgram are the outputs of a command, and the files that it made or changed, where it left them.
func LeftByProgram(result chain.StageResult) (files []Left) {
	if result.Changed != nil {
		files = appendLeft(files, ".", true, *result.Changed)
	}
	for _, name := range slices.Sorted(maps.Keys(result.Outputs)) {
		for _, file := range result.Outputs[name] {
			files = appendLeft(files, file.Path, file.Tree, file.Artifact)
		}
	}
	return files
}

// appendLeft adds what was left; an optional output that was not has no digest.
func appendLeft(files []Left, name string, isTree bool, artifact activities.Ref) []Left {
	if artifact.Digest == "" {
		return files
	}
	return append(files, Left{Name: name, Tree: isTree, Digest: artifact.Digest, Bytes: artifact.Bytes})
}

var artifactDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// LeftInResult are the artifacts that the result of any pipeline names, each by its place there: that of
// {"model": {"weights": ARTIFACT}} is model/weights; a / within a key is %2F.
func LeftInResult(encoded json.RawMessage) (files []Left, err error) {
	var result any
	if err := json.Unmarshal(encoded, &result); err != nil {
		return nil, fmt.Errorf("decode the result: %w", err)
	}
	return leftIn(nil, "", result), nil
}

// fileName is the name of a file for a key: no two keys have the same.
func fileName(key string) string {
	switch key {
	case "", ".", "..":
		return strings.ReplaceAll("%"+key, ".", "2E") // no other key has such a name: a % of its own is %25
	default:
		return strings.NewReplacer("%", "%25", "/", "%2F", "\x00", "%00").Replace(key)
	}
}

func leftIn(files []Left, place string, value any) []Left {
	below := func(name string) string { return strings.TrimPrefix(place+"/"+fileName(name), "/") }
	switch value := value.(type) {
	case []any:
		for i, one := range value {
			files = leftIn(files, below(strconv.Itoa(i)), one)
		}
	case map[string]any:
		digest, _ := value["digest"].(string)
		size, sized := value["bytes"].(float64)
		if sized && artifactDigest.MatchString(digest) {
			name := place
			if name == "" {
				name = "result"
			}
			return append(files, Left{Name: name, Digest: digest, Bytes: int64(size)})
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			files = leftIn(files, below(name), value[name])
		}
	}
	return files
}

// Out is where the files that a run has left are put.
type Out struct {
	// Dir is a directory, which is made where it is not there; empty means that they are not wanted.
	Dir string
	// Shared takes one that others can change, too.
	Shared bool
}

// Check refuses, before anything is done, a directory that they could not be put into.
func (o Out) Check() error {
	if o.Dir == "" {
		return nil
	}
	if err := safefile.Check(o.Dir, o.Shared); err != nil {
		return flag.RefusedOut("--out", o.Dir, err)
	}
	return nil
}

// Fetch puts the files into the directory, each whole or not at all. Nothing is made for none.
func (o Out) Fetch(ctx context.Context, store activities.Store, files []Left) (err error) {
	if len(files) == 0 {
		return nil
	}
	root, err := safefile.Open(o.Dir, 0o755, o.Shared)
	if err != nil {
		return flag.RefusedOut("--out", o.Dir, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, file := range files {
		artifact := activities.Ref{Digest: file.Digest, Bytes: file.Bytes}
		if err := Receive(ctx, store, root, filepath.FromSlash(file.Name), artifact, file.Tree); err != nil {
			return fmt.Errorf("fetch %s: %w", display.Name(file.Name), err)
		}
	}
	return nil
}

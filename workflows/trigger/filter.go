package trigger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
)

// normalize returns the filter as JSON would give it back, so that 3 given in Go equals 3 read from a body.
func normalize(filter map[string]any) (map[string]any, error) {
	if len(filter) == 0 {
		return nil, nil
	}
	encoded, err := json.Marshal(filter)
	if err != nil {
		return nil, fmt.Errorf("filter is not JSON: %w", err)
	}
	var normal map[string]any
	if err := json.Unmarshal(encoded, &normal); err != nil {
		return nil, fmt.Errorf("filter is not JSON: %w", err)
	}
	for path := range normal {
		if slices.Contains(strings.Split(path, "."), "") {
			return nil, errors.New("filter path " + strconv.Quote(path) +
				` has an empty part: write it like "kind" or "meta.size"`)
		}
	}
	return normal, nil
}

// checkFilter refuses a normal filter of which a path, or a text in a value, is too long or cannot be printed: filters
// are shown as they are.
func checkFilter(filter map[string]any) error {
	for _, path := range slices.Sorted(maps.Keys(filter)) {
		if err := wire.CheckText(path, wire.MaxName); err != nil {
			return fmt.Errorf("filter path %.60q: %w", path, err)
		}
		if err := checkTexts(filter[path]); err != nil {
			return fmt.Errorf("filter %.60q: %w", path, err)
		}
	}
	return nil
}

// checkTexts looks at every text in a JSON value, names of members included.
func checkTexts(value any) error {
	switch value := value.(type) {
	case string:
		if err := wire.CheckText(value, wire.MaxName); err != nil {
			return fmt.Errorf("value %.60q: %w", value, err)
		}
	case []any:
		for _, one := range value {
			if err := checkTexts(one); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if err := errors.Join(checkTexts(name), checkTexts(value[name])); err != nil {
				return err
			}
		}
	}
	return nil
}

// mismatch returns the first path, in order of the paths, at which body has not the value that the filter wants; ok is
// false when there is none. Parts of a path are member names, or positions in an array from 0.
func mismatch(filter map[string]any, body any) (path string, ok bool) {
	for _, path := range slices.Sorted(maps.Keys(filter)) {
		got, found := at(body, path)
		if !found || !reflect.DeepEqual(got, filter[path]) {
			return path, true
		}
	}
	return "", false
}

// at returns what stands in body at path.
func at(body any, path string) (any, bool) {
	for part := range strings.SplitSeq(path, ".") {
		switch value := body.(type) {
		case map[string]any:
			next, found := value[part]
			if !found {
				return nil, false
			}
			body = next
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(value) {
				return nil, false
			}
			body = value[i]
		default:
			return nil, false
		}
	}
	return body, true
}

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
			return nil, errors.New("filter path " + strconv.Quote(path) + ` has an empty part: write it like "kind" or "meta.size"`)
		}
	}
	return normal, nil
}

// mismatch returns the first path, in order of the paths, at which body has not the value that the filter wants; ok is false when there is none.
// Parts of a path are member names, or positions in an array from 0.
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

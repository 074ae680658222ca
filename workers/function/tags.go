package function

import (
	"maps"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of tags: https://docs.aws.amazon.com/lambda/latest/dg/configuration-tags.html.
const (
	maxTags          = 50
	maxTagKeyRunes   = 128
	maxTagValueRunes = 256
	reservedTag      = "aws:"
)

// checkTags refuses tags that AWS would refuse.
func checkTags(tags map[string]string) error {
	if len(tags) > maxTags {
		return errInvalid("the function would have %d tags, and at most %d can be", len(tags), maxTags)
	}
	for key, value := range tags {
		switch {
		case key == "" || utf8.RuneCountInString(key) > maxTagKeyRunes:
			return errInvalid("tag key %q has to have between 1 and %d characters", key, maxTagKeyRunes)
		case utf8.RuneCountInString(value) > maxTagValueRunes:
			return errInvalid("the value of tag %q has more than %d characters", key, maxTagValueRunes)
		case strings.HasPrefix(strings.ToLower(key), reservedTag):
			return errInvalid("tag key %q begins as those of AWS do", key)
		}
	}
	return nil
}

// listTags serves ListTags: https://docs.aws.amazon.com/lambda/latest/api/API_ListTags.html.
func (h *Host) listTags(w http.ResponseWriter, r *http.Request, _ []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	tags := h.settings(f).Tags
	if tags == nil {
		tags = map[string]string{}
	}
	h.writeJSON(w, http.StatusOK, struct{ Tags map[string]string }{tags})
	return nil
}

// tag serves TagResource: https://docs.aws.amazon.com/lambda/latest/api/API_TagResource.html.
func (h *Host) tag(w http.ResponseWriter, r *http.Request, body []byte) error {
	var in struct{ Tags map[string]string }
	if err := readFields(body, &in); err != nil {
		return err
	}
	return h.change(w, r, func(c *config) error {
		tags := maps.Clone(c.Tags)
		if tags == nil {
			tags = map[string]string{}
		}
		maps.Copy(tags, in.Tags)
		c.Tags = tags
		return checkTags(tags)
	})
}

// untag serves UntagResource: https://docs.aws.amazon.com/lambda/latest/api/API_UntagResource.html.
func (h *Host) untag(w http.ResponseWriter, r *http.Request, _ []byte) error {
	return h.change(w, r, func(c *config) error {
		tags := maps.Clone(c.Tags)
		for _, key := range r.URL.Query()["tagKeys"] {
			delete(tags, key)
		}
		c.Tags = tags
		return nil
	})
}

// change changes what of a function its environments do not see.
func (h *Host) change(w http.ResponseWriter, r *http.Request, edit func(*config) error) error {
	h.admin.Lock()
	defer h.admin.Unlock()
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	c := h.settings(f)
	if err := edit(&c); err != nil {
		return err
	}
	if err := h.keep(f, c); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// keep saves the settings c of f, whose environments stay. The caller holds admin.
func (h *Host) keep(f *function, c config) error {
	if err := h.store.save(c); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f.config = c
	return nil
}

// reservation is the concurrency that a function has reserved.
type reservation struct {
	ReservedConcurrentExecutions *int `json:",omitempty"`
}

// minUnreserved is what of the account's concurrency stays for functions that have none reserved:
// https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html.
const minUnreserved = 100

// putConcurrency serves PutFunctionConcurrency:
// https://docs.aws.amazon.com/lambda/latest/api/API_PutFunctionConcurrency.html.
func (h *Host) putConcurrency(w http.ResponseWriter, r *http.Request, body []byte) error {
	var in reservation
	if err := readFields(body, &in); err != nil {
		return err
	}
	if in.ReservedConcurrentExecutions == nil || *in.ReservedConcurrentExecutions < 0 {
		return errInvalid("'reservedConcurrentExecutions' failed to satisfy constraint: at least 0")
	}
	h.admin.Lock()
	defer h.admin.Unlock()
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	c := h.settings(f)
	if h.unreserved(c.Name)-*in.ReservedConcurrentExecutions < minUnreserved {
		return errInvalid("Specified ReservedConcurrentExecutions for function decreases account's "+
			"UnreservedConcurrentExecution below its minimum value of [%d].", minUnreserved)
	}
	c.Reserved, c.Modified = in.ReservedConcurrentExecutions, time.Now()
	if err := h.keep(f, c); err != nil {
		return err
	}
	h.writeJSON(w, http.StatusOK, in)
	return nil
}

// unreserved returns the concurrency that functions but this one leave.
func (h *Host) unreserved(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := h.opts.Concurrency
	for _, f := range h.functions {
		if f.config.Reserved != nil && f.config.Name != name {
			left -= *f.config.Reserved
		}
	}
	return left
}

// getConcurrency serves GetFunctionConcurrency:
// https://docs.aws.amazon.com/lambda/latest/api/API_GetFunctionConcurrency.html.
func (h *Host) getConcurrency(w http.ResponseWriter, r *http.Request, _ []byte) error {
	f, err := h.lookup(r)
	if err != nil {
		return err
	}
	h.writeJSON(w, http.StatusOK, reservation{h.settings(f).Reserved})
	return nil
}

// deleteConcurrency serves DeleteFunctionConcurrency:
// https://docs.aws.amazon.com/lambda/latest/api/API_DeleteFunctionConcurrency.html.
func (h *Host) deleteConcurrency(w http.ResponseWriter, r *http.Request, _ []byte) error {
	return h.change(w, r, func(c *config) error {
		c.Reserved = nil
		return nil
	})
}

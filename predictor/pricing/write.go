package pricing

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Write writes rows as Parse reads them, in the order of the catalogue.
func Write(w io.Writer, rows []Row) error {
	out := csv.NewWriter(w)
	if err := out.Write(columns); err != nil {
		return fmt.Errorf("write prices: %w", err)
	}
	for _, row := range slices.SortedFunc(slices.Values(rows), compareRows) {
		if err := out.Write(fieldsOf(row)); err != nil {
			return fmt.Errorf("write prices: %w", err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write prices: %w", err)
	}
	return nil
}

// fieldsOf are the columns of a row.
func fieldsOf(row Row) []string {
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	gpus := int64(row.Capacity.GPU / quantity.Core)
	validUntil := ""
	if !row.ValidUntil.IsZero() {
		validUntil = row.ValidUntil.Format(time.DateOnly)
	}
	return []string{
		string(row.Kind), row.Provider, row.Region, row.Name, number(int64(row.Capacity.CPU)),
		number(int64(row.Capacity.Memory)), row.Capacity.DeviceClass, number(gpus),
		number(int64(row.Capacity.GPUMemory) / max(gpus, 1)), row.Price.Decimal(), string(row.Unit),
		row.Dated.Format(time.DateOnly), row.Source, validUntil,
	}
}

// Change is what became of one price when a catalogue was refreshed.
type Change struct {
	// Row is as it is now.
	Row Row
	// Before is what it cost; meaningless where IsNew.
	Before quantity.Money
	// IsNew says that the catalogue did not have it.
	IsNew bool
	// IsKept says that there was nothing newer, so that it is as it was.
	IsKept bool
}

// Percent is by how much the price rose, in percent of what it was; 0 for a new one, and for one that was free.
func (c Change) Percent() float64 {
	if c.IsNew || c.Before == 0 {
		return 0
	}
	return 100 * (c.Row.Price.USD() - c.Before.USD()) / c.Before.USD()
}

// Refreshed returns the rows of the catalogue with fresh ones in the place of those of the same kind, region, name and
// unit, and what became of each row of that provider and region, in the order of the catalogue.
func (c Catalogue) Refreshed(provider, region string, fresh []Row) (rows []Row, changes []Change) {
	left := slices.SortedFunc(slices.Values(fresh), compareRows)
	for _, old := range c.rows {
		at, found := slices.BinarySearchFunc(left, old, compareRows)
		switch {
		case found:
			changes = append(changes, Change{Row: left[at], Before: old.Price})
			rows = append(rows, left[at])
			left = slices.Delete(left, at, at+1)
			continue
		case old.Provider == provider && old.Region == region:
			changes = append(changes, Change{Row: old, Before: old.Price, IsKept: true})
		}
		rows = append(rows, old)
	}
	for _, row := range left {
		changes = append(changes, Change{Row: row, IsNew: true})
	}
	rows = append(rows, left...)
	slices.SortFunc(rows, compareRows)
	slices.SortFunc(changes, func(a, b Change) int { return compareRows(a.Row, b.Row) })
	return rows, changes
}

// Package quantity holds the value types that every part of Spillway shares: shares of cores, bytes, money, sizes and
// usage.
//
// Each type carries its unit, so that a number of bytes cannot be passed where thousandths of a core are meant.
package quantity

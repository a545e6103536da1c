import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { MemoryNeed } from "../../../src/index.js";
import { availableOn, checkFit } from "../../../src/manager/memory/budget.js";
import { bytesOn, chargesOf, reservedOn } from "../../../src/manager/memory/claims.js";
import type { Claim } from "../../../src/manager/memory/claims.js";
import { claimOf } from "../../../src/manager/memory/placement.js";
import { reportPools } from "../../../src/manager/memory/report.js";
import type { Tenant } from "../../../src/manager/memory/room.js";
import type { Device, DeviceInfo } from "../../../src/model.js";

const DEVICES: readonly DeviceInfo[] = (["ram", "gpu:0", "gpu:1", "gpu:2"] as const).map((device) => ({
  device,
  name: device,
  totalBytes: 1e12,
  freeBytes: 1e12,
}));
const POOLS: readonly Device[] = ["total", "ram", "gpu:0", "gpu:1", "gpu:2"];

/** A model of 100 bytes of weights and 10 of contexts. */
function model(key: string, measured = true, mappedBytes = 0): Claim {
  const need = { ramBytes: 110, gpuWeightsBytes: 0, gpuContextBytes: 0, mappedBytes, shared: { key, ramBytes: 100 } };
  return { ...claimOf(need, {}, []), measured };
}

const bytes = fc.nat(1_000_003);
/** Models of three files; the weights of a file are the same for all of them. */
const residents = fc
  .record({
    weights: fc.array(fc.record({ ram: bytes, gpu: bytes, mapped: fc.double({ min: 0, max: 1, noNaN: true }) }), {
      minLength: 3,
      maxLength: 3,
    }),
    split: fc.constantFrom([], [1, 2, 3], [0, 1, 7]),
    models: fc.array(fc.record({ file: fc.nat(3), ram: bytes, gpu: bytes, measured: fc.boolean() }), { maxLength: 8 }),
  })
  .map(({ weights, split, models }) =>
    models.map(({ file, ram, gpu, measured }): Claim => {
      const held = weights[file];
      const need: MemoryNeed = {
        ramBytes: ram + (held?.ram ?? 0),
        gpuWeightsBytes: held?.gpu ?? 0,
        gpuContextBytes: gpu,
        mappedBytes: Math.floor((held?.mapped ?? 0) * (held?.ram ?? 0)),
        // the fourth file is of a backend that shares nothing
        ...(held && { shared: { key: `file ${file}`, ramBytes: held.ram } }),
      };
      return { ...claimOf(need, { tensorSplit: split }, DEVICES), measured };
    }),
  );

function privateOn(device: Device, { placement, shared }: Claim): number {
  return bytesOn(device, placement) - (shared ? bytesOn(device, shared.placement) : 0);
}

describe("what claims take together", () => {
  it("is what is each one's own, and what they share once for each key", () => {
    fc.assert(
      fc.property(residents, fc.constantFrom(...POOLS), (claims, device) => {
        const shared = new Map(claims.flatMap(({ shared }) => (shared ? [[shared.key, shared.placement]] : [])));
        const own = claims.reduce((sum, claim) => sum + privateOn(device, claim), 0);

        const reserved = reservedOn(device, claims);

        expect(reserved).toBe([...shared.values()].reduce((sum, part) => sum + bytesOn(device, part), own));
      }),
    );
  });

  it("falls by what is its own when one goes of several with a key, and by all of it when the last goes", () => {
    fc.assert(
      fc.property(residents, fc.nat(7), fc.constantFrom(...POOLS), (claims, index, device) => {
        const gone = claims[index];
        fc.pre(gone !== undefined);
        const rest = claims.filter((claim) => claim !== gone);
        const isShared = rest.some(({ shared }) => shared !== undefined && shared.key === gone.shared?.key);

        const freed = reservedOn(device, claims) - reservedOn(device, rest);

        expect(freed).toBe(isShared ? privateOn(device, gone) : bytesOn(device, gone.placement));
        expect(freed).toBeGreaterThanOrEqual(0);
      }),
    );
  });

  it("is, of one alone, its placement", () => {
    fc.assert(
      fc.property(residents, fc.constantFrom(...POOLS), (claims, device) => {
        for (const claim of claims) expect(reservedOn(device, [claim])).toBe(bytesOn(device, claim.placement));
      }),
    );
  });

  it("counts the largest where an estimate and a report of one key differ", () => {
    const estimated = model("a", false);
    const repacked: Claim = { ...model("a"), placement: { ram: 140 }, shared: { key: "a", placement: { ram: 130 } } };

    expect(reservedOn("ram", [estimated, repacked])).toBe(130 + 10 + 10);
    expect(reservedOn("ram", [repacked, estimated])).toBe(130 + 10 + 10);
  });

  it("has shared weights allocated as soon as one who holds them is measured", () => {
    const charges = chargesOf([model("a", false, 60), model("a", true, 60)]);

    expect(charges).toEqual([
      { placement: { ram: 10 }, mappedBytes: 0, measured: false },
      { placement: { ram: 10 }, mappedBytes: 0, measured: true },
      { placement: { ram: 100 }, mappedBytes: 60, measured: true },
    ]);
  });
});

describe("a load of weights that are there already", () => {
  const ram = { device: "ram", limitBytes: 130, freeBytes: undefined } as const;

  it("needs only what is its own", () => {
    const fit = checkFit(model("a"), [ram], [model("a")]);

    expect(fit).toEqual({ fits: true, requiredBytes: 10, availableBytes: 20 });
  });

  it("is refused over its own part, with that number", () => {
    const fit = checkFit(model("a"), [{ ...ram, limitBytes: 119 }], [model("a")]);

    expect(fit).toEqual({ fits: false, device: "ram", requiredBytes: 10, availableBytes: 9 });
  });

  it("needs all of it where the weights are others", () => {
    const fit = checkFit(model("b"), [ram], [model("a")]);

    expect(fit).toEqual({ fits: false, device: "ram", requiredBytes: 110, availableBytes: 20 });
  });

  it("needs all of it when the claims that hold them are left out", () => {
    const [one, other] = [model("a"), model("b")];
    const pool = { ...ram, limitBytes: 220 };

    expect(checkFit(model("a"), [pool], [one, other])).toMatchObject({ fits: false, requiredBytes: 10 });
    expect(checkFit(model("a"), [pool], [one])).toMatchObject({ fits: true, requiredBytes: 10 });
    expect(checkFit(model("a"), [pool], [other])).toMatchObject({ fits: true, requiredBytes: 110 });
  });

  it("is not asked for free memory that the weights have taken already", () => {
    const free = { device: "ram", limitBytes: 1_000, freeBytes: 15 } as const;

    expect(checkFit(model("a"), [free], [model("a")])).toMatchObject({ fits: true, availableBytes: 15 });
    // while they are being loaded, they are still counted as free
    expect(availableOn({ ...free, freeBytes: 200 }, [model("a", false), model("a", false)])).toBe(200 - 120);
    // and so is a file mapping, once
    expect(availableOn({ ...free, freeBytes: 200 }, [model("a", true, 60), model("a", true, 60)])).toBe(200 - 60);
  });
});

describe("the report", () => {
  it("has shared weights once, measured when one who holds them is", () => {
    const tenant = (modelId: string, fate: Tenant["fate"], measured: boolean): Tenant => ({
      ...model("a", measured),
      modelId,
      incarnation: 1,
      fate,
      isReady: true,
      isInUse: fate === "busy",
      evictionPriority: 0,
      lastUsedAt: 0,
    });
    const [row] = reportPools(
      [{ device: "ram", limitBytes: 1_000, freeBytes: undefined }],
      [tenant("one", "idle", true), tenant("other", "busy", false)],
    );

    expect(row).toEqual({
      device: "ram",
      limitBytes: 1_000,
      reservedBytes: 120,
      measuredBytes: 110,
      availableBytes: 880,
      evictableBytes: 10,
    });
  });
});

import { channel, type Channel } from "node:diagnostics_channel";
import { EventEmitter } from "eventemitter3";
import type { Logger, ModelManagerEvents } from "../api.js";
import { checkEventName } from "./options.js";
import type { Notice } from "./decision.js";

/** A listener of any of the events. Written as a method, since only methods may be given one with a narrower payload. */
type Listener = { listen(payload: unknown): unknown }["listen"];

/** Typed events whose listeners cannot harm the manager, nor each other: what they throw goes to the logger. */
export class ModelEvents {
  readonly #emitter = new EventEmitter();
  readonly #guarded = new WeakMap<Listener, Listener>();
  readonly #logger: Logger;
  /** The supervisor's name. */
  readonly #supervisor: string;
  /** Node hands out one channel for one name; asking for it anew costs a look-up. */
  readonly #channels = new Map<string, Channel>();

  constructor(logger: Logger, supervisor: string) {
    this.#logger = logger;
    this.#supervisor = supervisor;
  }

  emit({ name, payload }: Notice): void {
    this.#emitter.emit(name, payload);
    const published = this.#channel(name);
    if (published.hasSubscribers) published.publish({ ...payload, supervisor: this.#supervisor });
  }

  /** False: what would be told need not be made. */
  isHeard(name: keyof ModelManagerEvents): boolean {
    return this.#emitter.listenerCount(name) > 0 || this.#channel(name).hasSubscribers;
  }

  #channel(name: string): Channel {
    const known = this.#channels.get(name);
    if (known !== undefined) return known;
    const made = channel(`model-supervisor:${name}`);
    this.#channels.set(name, made);
    return made;
  }

  on<Name extends keyof ModelManagerEvents>(name: Name, listener: ModelManagerEvents[Name]): void {
    checkEventName(name);
    this.#emitter.on(name, this.#guard(name, listener));
  }

  once<Name extends keyof ModelManagerEvents>(name: Name, listener: ModelManagerEvents[Name]): void {
    checkEventName(name);
    this.#emitter.once(name, this.#guard(name, listener));
  }

  off<Name extends keyof ModelManagerEvents>(name: Name, listener: ModelManagerEvents[Name]): void {
    const guarded = this.#guarded.get(listener);
    if (guarded) this.#emitter.off(name, guarded);
  }

  #guard(name: string, listener: Listener): Listener {
    const guarded =
      this.#guarded.get(listener) ?? ((payload: unknown) => guard(() => listener(payload), name, this.#logger));
    this.#guarded.set(listener, guarded);
    return guarded;
  }
}

/** Runs a caller's function inside our own work. */
export function guard(callback: () => unknown, name: string, logger: Logger): void {
  const warn = (error: unknown) => logger.warn(`A listener of "${name}" threw.`, error);
  try {
    // a listener may be an async function, whatever its type says
    Promise.resolve(callback()).catch(warn);
  } catch (error) {
    warn(error);
  }
}

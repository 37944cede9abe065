// Reads that overlap: of those of one view only the one that was begun last has an effect.

/** See the module's head. */
export class LatestRead {
  #number = 0;

  /**
   * Awaits `read`, then calls `show` with its result or `fail` with its error; neither, if another
   * read was begun meanwhile.
   */
  async run(read, show, fail) {
    this.#number += 1;
    const number = this.#number;
    try {
      const found = await read();
      if (number === this.#number) {
        show(found);
      }
    } catch (error) {
      if (number === this.#number) {
        fail(error);
      }
    }
  }
}

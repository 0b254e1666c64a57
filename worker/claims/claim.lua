-- Take messages for one batch, and write down in the same call who has them.
-- KEYS 1 this worker's claims (hash: tag -> list \0 message)   2 leases (sorted set: worker -> expiry)
--      3 deliveries so far (hash: sha1 of message -> count)
--      4 queues of tenants (set of names)   5 weights of tenants (hash)
-- ARGV 1 what is asked, as JSON:
--        claim     its number, for the tags: counted by the worker, as a failover may roll back what is here
--        worker    who asks                        groups    queue -> compile key; tenants' queues too
--        pictures  how many are wanted             messages  how many may be taken at most
--        suspect   delivery from which on a message is suspect
--        idle      whether this worker has nothing else in hand
--        turns     what this script answered last time, {} at first
-- Strict priority between levels; inside a level whose turn it is (see `whose_turn`). The first message
-- decides the compile key of all the others. A suspect is taken alone, by a worker with nothing else in
-- hand: whoever dies with it cannot be counted for it.
-- Returns {turns as JSON, {{tag, list, message, deliveries}, …}}, or false if this worker's lease is
-- gone: then it must join again first.
local ask = cjson.decode(ARGV[1])
if not redis.call('ZSCORE', KEYS[2], ask.worker) then return false end
local retold = redis.call('HLEN', KEYS[3]) > 0
local taken, pictures, group, finished = {}, 0, nil, false

-- A place to take from: its queue, and whom it is charged to, each a part of the one before:
-- tenant, compile key of the tenant, queue.
local places = {}
local function add_place(queue, group, tenant, weight)
  local key = tenant .. '\n' .. group
  places[#places + 1] = {
    queue = queue, group = group, weight = weight, empty_levels = 0,
    path = {tenant, key, key .. '\n' .. queue}, parents = {'*', tenant, key},
  }
end
local weights, weighed = {}, redis.call('HGETALL', KEYS[5])
for i = 1, #weighed, 2 do weights[weighed[i]] = tonumber(weighed[i + 1]) end
for queue, its_group in pairs(ask.groups) do add_place(queue, its_group, '', 1) end
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[4])) do
  local tenant, its_group = tenant_of(queue), ask.groups[string.match(queue, '^[^@]*')]
  if tenant and its_group and not ask.groups[queue] then
    local weight = weights[tenant] or 1
    add_place(queue, its_group, tenant, weight > 0 and weight or 1)
  end
end

-- Start-time fair queueing (Goyal, Vin, Cheng 1996): whoever was served is charged pictures / weight;
-- the least charged is next. `now` is what the last one served had been charged before: who comes
-- new, or back from a pause, starts there, with neither debts nor savings.
local function parent_of(name) return string.match(name, '^(.*)\n') or '*' end
local function charged(turns, place, depth)
  local mine, now = turns.charged[place.path[depth]] or 0, turns.now[place.parents[depth]] or 0
  return mine > now and mine or now
end

local function whose_turn(turns, candidates)
  for depth = 1, 3 do
    local least, best = math.huge, nil
    for _, place in ipairs(candidates) do
      local name = place.path[depth]
      local mine = charged(turns, place, depth)
      if mine < least or (mine == least and name < best) then least, best = mine, name end
    end
    local mates = {}
    for _, place in ipairs(candidates) do
      if place.path[depth] == best then mates[#mates + 1] = place end
    end
    candidates = mates
  end
  return candidates[1]
end

local function charge(turns, place, cost, free)
  for depth, name in ipairs(place.path) do
    local before = charged(turns, place, depth)
    if free then turns.now[place.parents[depth]] = before end
    turns.charged[name] = before + cost / place.weight
  end
end

-- Forget what is the same as being new.
local function tidy(turns)
  local kept, now = {}, {}
  for name, mine in pairs(turns.charged) do
    local parent = parent_of(name)
    if mine > (turns.now[parent] or 0) then
      kept[name], now[parent] = mine, turns.now[parent]
    end
  end
  turns.charged, turns.now = kept, now
end

-- Pictures taken, or nil if nothing can be taken there now.
local function take(list)
  local message = redis.call('RPOP', list)
  if not message then return nil end
  local before = retold and redis.call('HGET', KEYS[3], redis.sha1hex(message)) or 0
  local delivery = tonumber(before or 0) + 1
  if delivery >= ask.suspect then
    finished = true
    if #taken > 0 or not ask.idle then
      put_back(list, message)
      return nil
    end
  end
  local tag = string.format('%d.%06d', ask.claim, #taken)
  redis.call('HSET', KEYS[1], tag, list .. '\0' .. message)
  taken[#taken + 1] = {tag, list, message, delivery}
  return tonumber(string.match(message, '"images": ?(%d+)') or 1)
end

local function serve(level, turns)
  local waiting = {}
  for _, place in ipairs(places) do
    place.left = redis.call('LLEN', place.queue .. level)
    if place.left > 0 then
      waiting[#waiting + 1] = place
    else
      place.empty_levels = place.empty_levels + 1
    end
  end
  local free = true  -- nobody has been passed over for another compile key
  local function narrow()
    local still = {}
    for _, place in ipairs(waiting) do
      if place.left > 0 and group and place.group ~= group then free = false end
      if place.left > 0 and (not group or place.group == group) then still[#still + 1] = place end
    end
    waiting = still
  end
  narrow()
  while #waiting > 0 and not finished do
    local place = whose_turn(turns, waiting)
    local got = take(place.queue .. level)
    if got then
      charge(turns, place, got, free)
      group, place.left, pictures = place.group, place.left - 1, pictures + got
      finished = finished or pictures >= ask.pictures or #taken >= ask.messages
    else
      place.left = 0
    end
    narrow()
  end
  tidy(turns)
end

for _, level in ipairs(LEVELS) do
  if finished then break end
  ask.turns[level] = ask.turns[level] or {charged = {}, now = {}}
  serve(level, ask.turns[level])
end
for _, place in ipairs(places) do
  if place.empty_levels == #LEVELS then redis.call('SREM', KEYS[4], place.queue) end
end
return {cjson.encode(ask.turns), taken}
